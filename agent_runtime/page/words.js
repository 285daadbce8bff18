// Numbers and kinds in words.

const NUMBERS = new Intl.NumberFormat("en");

export function count(number) {
  return NUMBERS.format(number);
}

/** "1 token", "2 tokens". */
export function many(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

export function milliseconds(value) {
  if (value >= 2000) return `${(value / 1000).toFixed(1)} s`;
  return `${value >= 100 ? Math.round(value) : value.toFixed(value >= 1 ? 1 : 2)} ms`;
}

export function bytes(number) {
  const units = ["B", "KB", "MB", "GB"];
  let unit = 0;
  while (number >= 1000 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${number < 10 && unit ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

/** How tokens came about: the name, and what it means. The order is that of the legend. */
export const KINDS = {
  cached: { name: "cached", means: "read earlier with the same beginning: its KV is taken as it is" },
  reused: { name: "reused", means: "read earlier behind another beginning: its KV is taken, approximately" },
  recomputed: { name: "recomputed", means: "run through the model for this edit" },
  copied: { name: "copied", means: "drafted from file and edit, and confirmed by the model" },
  generated: { name: "generated", means: "the model’s own: each costs a forward pass" },
  scored: { name: "scored", means: "of a reading that the model was asked to weigh" },
};
