// Syntax colours: comments, strings, numbers and keywords of the most used languages. It colours, it does not parse.

const words = (text) => new Set(text.split(" "));

const C_LIKE = words(
  "abstract as async await bool boolean break case catch char class const continue default delete do double else enum " +
    "explicit export extends extern false final finally float fn for from func function go goto if impl implements import " +
    "in inline instanceof int interface let long match mod module mut namespace new nil null nullptr of operator override " +
    "package private protected pub public range readonly return select self short signed sizeof static string struct super " +
    "switch template this throw throws trait true try type typedef typename typeof undefined union unsafe unsigned use " +
    "using var virtual void volatile when where while yield val chan defer map fun object internal",
);
const PYTHON = words(
  "and as assert async await break case class continue def del elif else except False finally for from global if import " +
    "in is lambda match None nonlocal not or pass raise return self True try while with yield",
);
const RUBY = words(
  "alias and begin break case class def defined do else elsif end ensure false for if in module next nil not or redo " +
    "require rescue retry return self super then true undef unless until when while yield",
);
const SHELL = words(
  "case do done elif else esac exit export fi for function if in local readonly return set shift source then trap unset until while",
);
const SQL = words(
  "add all alter and as asc between by case check column constraint create cross default delete desc distinct drop else " +
    "end exists false foreign from full group having in index inner insert into is join key left like limit not null on " +
    "or order outer primary references right select set table then true union unique update values view when where with",
);
const VALUES = words("true false null yes no on off");

const SLASHES = String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
const HASH = String.raw`#[^\n]*`;
const HASH_AFTER_SPACE = String.raw`(?<![^\s])#[^\n]*`;
const QUOTED = String.raw`"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?`;
const TRIPLE = String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)`;
const BACKTICKS = String.raw`\x60(?:[^\x60\\]|\\[^])*\x60?`;
// In Rust and Java-like languages an apostrophe begins a character, in Rust also a lifetime.
const CHARACTER = String.raw`"(?:[^"\\]|\\[^])*"?|'(?:[^'\\\n]|\\[^\n]{1,8})'`;
const NUMBER = String.raw`(?<![\w.])(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)[a-zA-Z]{0,3}\b`;
const WORD = String.raw`[\p{L}_$][\p{L}\p{N}_$]*`;

/** A language: what its comments and strings look like, its keywords, and whether their case does not matter. */
const language = (comments, strings, keywords, { anyCase = false } = {}) => ({
  pattern: new RegExp(`(?<comment>${comments})|(?<string>${strings})|(?<number>${NUMBER})|(?<word>${WORD})`, "gu"),
  keywords,
  anyCase,
});

const SCRIPT = language(SLASHES, `${QUOTED}|${BACKTICKS}`, C_LIKE);
const SYSTEM = language(SLASHES, CHARACTER, C_LIKE);
const SETTINGS = language(HASH_AFTER_SPACE, QUOTED, VALUES);
const MARKUP = language(String.raw`<!--[^]*?(?:-->|$)`, QUOTED, new Set());

const LANGUAGES = [
  ["py pyi", language(HASH, `${TRIPLE}|${QUOTED}`, PYTHON)],
  ["js mjs cjs jsx ts mts cts tsx php dart", SCRIPT],
  ["c h cc cpp cxx hpp cu java kt kts cs rs scala swift m mm", SYSTEM],
  ["go", language(SLASHES, `${CHARACTER}|${BACKTICKS}`, C_LIKE)],
  ["rb", language(HASH, QUOTED, RUBY)],
  ["sh bash zsh mk dockerfile makefile", language(HASH_AFTER_SPACE, QUOTED, SHELL)],
  ["toml yaml yml ini cfg conf properties", SETTINGS],
  ["json jsonc", language(SLASHES, QUOTED, VALUES)],
  ["css scss less", language(String.raw`\/\*[^]*?(?:\*\/|$)`, QUOTED, new Set())],
  ["sql", language(String.raw`--[^\n]*|\/\*[^]*?(?:\*\/|$)`, QUOTED, SQL, { anyCase: true })],
  ["html htm xml svg vue svelte", MARKUP],
];

const BY_ENDING = new Map(LANGUAGES.flatMap(([endings, found]) => endings.split(" ").map((ending) => [ending, found])));

const MOST_CHARACTERS = 400_000;

/**
 * The lines of a text, each as pieces `[kind, text]`: kind is "comment", "string", "number", "keyword" or "".
 * Null for a language that is not known, and for a text that is too long.
 */
export function coloursOf(text, path) {
  const name = path.split("/").at(-1).toLowerCase();
  const found = BY_ENDING.get(name.split(".").at(-1));
  if (!found || text.length > MOST_CHARACTERS) return null;
  const lines = [[]];
  const add = (kind, part) => {
    part.split("\n").forEach((piece, at) => {
      if (at) lines.push([]);
      if (piece) lines.at(-1).push([kind, piece]);
    });
  };
  let end = 0;
  for (const match of text.matchAll(found.pattern)) {
    const { word } = match.groups;
    const isKeyword = word && found.keywords.has(found.anyCase ? word.toLowerCase() : word);
    if (word && !isKeyword) continue;
    add("", text.slice(end, match.index));
    add(isKeyword ? "keyword" : Object.keys(match.groups).find((kind) => match.groups[kind] !== undefined), match[0]);
    end = match.index + match[0].length;
  }
  add("", text.slice(end));
  return lines;
}
