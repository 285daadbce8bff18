// The file that an edit is for: one of a workspace, or a text that is pasted.

import { get } from "./api.js";
import { el } from "./dom.js";
import { count, many } from "./words.js";

const MOST_SHOWN = 300;
const PAGE = 10_000;
const MOST_LISTED = 200_000;

/** Endings of files that hold no text: an edit of one is refused, so they are not offered. */
const BINARY = new Set(
  ("7z a avi avif bin bmp bz2 class db dll dylib eot exe flac gif gguf gz icns ico jar jpeg jpg lib lockb mkv mov mp3 mp4 npy npz o " +
    "obj ogg onnx otf parquet pdf pickle pkl png psd pt pth pyc pyd rar safetensors so sqlite sqlite3 tar tgz tif tiff ttf wasm " +
    "wav webm webp whl woff woff2 xls xlsx xz zip zst docx pptx odt").split(" "),
);

const isText = (path) => !BINARY.has(path.split("/").at(-1).split(".").slice(1).at(-1)?.toLowerCase());

const byId = (id) => document.getElementById(id);

/** Follows the choice of the file; `onProblem` hears of what cannot be had. */
export class Source {
  #files = [];
  #numBinary = 0;
  #loaded = null;
  #onProblem;
  #loading = 0;

  constructor(onProblem) {
    this.#onProblem = onProblem;
    for (const radio of document.getElementsByName("source")) radio.addEventListener("change", () => this.#arrange());
    byId("workspace").addEventListener("change", () => this.#list());
    byId("filter").addEventListener("input", () => this.#filter());
    byId("paths").addEventListener("change", () => this.load(byId("paths").value));
  }

  get isOfWorkspace() {
    return byId("source-workspace").checked;
  }

  /** What the request says of the file. */
  get fields() {
    if (!this.isOfWorkspace) {
      const name = byId("name").value.trim();
      return { original: byId("text").value, ...(name ? { path: name } : {}) };
    }
    if (!this.#loaded) throw new Error("Choose a file of the workspace first.");
    const { workspace, path, sha256 } = this.#loaded;
    return { workspace, path, expected_sha256: sha256 };
  }

  /** The text that the edit is for. */
  get text() {
    return this.isOfWorkspace ? (this.#loaded?.text ?? "") : byId("text").value;
  }

  /** Find out which workspaces there are, and show the files of the first, if any. */
  async begin() {
    let workspaces = [];
    try {
      workspaces = (await get("workspaces")).workspaces;
    } catch (problem) {
      if (problem.status !== 404) throw problem;
    }
    byId("workspace").replaceChildren(...workspaces.map(({ name }) => el("option", { value: name }, name)));
    byId("source-workspace").disabled = workspaces.length === 0;
    if (workspaces.length && !byId("text").value) byId("source-workspace").checked = true;
    this.#arrange();
    if (workspaces.length) await this.#list();
  }

  /** Take a text as if it had been pasted. */
  paste(name, text) {
    byId("source-paste").checked = true;
    this.#arrange();
    byId("name").value = name;
    byId("text").value = text;
  }

  /** Load a file of the workspace (again). */
  async load(path = this.#loaded?.path) {
    if (!path) return;
    this.#loading += 1;
    const mine = this.#loading;
    const workspace = byId("workspace").value;
    try {
      const place = path.split("/").map(encodeURIComponent).join("/");
      const file = await get(`workspaces/${encodeURIComponent(workspace)}/files/${place}`);
      if (mine !== this.#loading) return;
      this.#loaded = { workspace, path, sha256: file.sha256, text: file.text };
      byId("text").value = file.text;
      byId("file-note").textContent =
        `${path}: ${many(file.text.split("\n").length, "line")}, ${file.encoding}, sha256 ${file.sha256.slice(0, 12)}…`;
    } catch (problem) {
      this.#onProblem(problem);
    }
  }

  #arrange() {
    const { isOfWorkspace } = this;
    byId("from-workspace").hidden = !isOfWorkspace;
    byId("from-paste").hidden = isOfWorkspace;
    byId("text").readOnly = isOfWorkspace;
    byId("file-note").textContent = "";
    if (isOfWorkspace) byId("text").value = this.#loaded?.text ?? "";
  }

  async #list() {
    const place = `workspaces/${encodeURIComponent(byId("workspace").value)}/files`;
    this.#files = [];
    this.#numBinary = 0;
    try {
      let after = "";
      do {
        const page = await get(`${place}?limit=${PAGE}&after=${encodeURIComponent(after)}`);
        const paths = page.files.map((file) => file.path);
        this.#files.push(...paths.filter(isText));
        this.#numBinary += paths.filter((path) => !isText(path)).length;
        after = page.next;
      } while (after && this.#files.length < MOST_LISTED);
    } catch (problem) {
      this.#onProblem(problem);
    }
    this.#filter();
  }

  #filter() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.#files.filter((path) => words.every((word) => path.toLowerCase().includes(word)));
    const shown = found.slice(0, MOST_SHOWN);
    byId("paths").replaceChildren(...shown.map((path) => el("option", { value: path }, path)));
    if (this.#loaded && shown.includes(this.#loaded.path)) byId("paths").value = this.#loaded.path;
    const more = found.length > shown.length ? `, the first ${count(shown.length)} shown` : "";
    const binary = this.#numBinary ? `; ${count(this.#numBinary)} binary not offered` : "";
    byId("paths-note").textContent = `${many(found.length, "file")}${more}${binary}`;
  }
}
