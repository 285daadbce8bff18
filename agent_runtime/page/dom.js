// Makes elements; text only ever becomes text nodes.

/**
 * An element with attributes and children. Strings become text nodes; null and undefined are left out.
 * An attribute that is `true` has no value, one that is false or null is left out.
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** Text that only screen readers get. */
export function forReaders(text) {
  return el("span", { class: "sr" }, text);
}

/** A box that scrolls, which the keyboard has to reach. */
export function scrolling(label, attributes, ...children) {
  return el("div", { role: "region", tabindex: "0", "aria-label": label, ...attributes }, ...children);
}

/** Calls that come close together are one, before the next frame is drawn. */
export function oncePerFrame(work) {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      work();
    });
  };
}

const SLICE = 400;

/**
 * Adds what `make(slice)` gives for each slice of the items, one after the other, so that the page goes on answering;
 * ends early when they are no longer wanted.
 */
export async function addInSlices(parent, items, make, isWanted) {
  for (let start = 0; start < items.length && isWanted(); start += SLICE) {
    parent.append(make(items.slice(start, start + SLICE)));
    await new Promise((next) => setTimeout(next));
  }
}
