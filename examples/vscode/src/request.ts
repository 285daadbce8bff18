// What is asked of the service: one edit of one file, dry, with the hash of the file that it is meant for.

import { createHash } from "node:crypto";

export type Mode = "auto" | "deterministic" | "model";

/** The file as the editor has it. `saved` are its bytes on the disk, null where the editor holds other text. */
export interface OpenFile {
  readonly text: string;
  readonly path: string;
  readonly saved: Uint8Array | null;
}

export interface ApplyBody {
  readonly edit: string;
  readonly path: string;
  readonly mode: Mode;
  readonly expected_sha256: string;
  readonly original?: string;
  readonly workspace?: string;
}

export function sha256(data: string | Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}

/**
 * The body of the request. A saved file of a workspace is named, with the hash of its bytes, so that the service
 * refuses (409) where it has another one; any other text is sent along.
 */
export function applyBody(file: OpenFile, edit: string, mode: Mode, workspace: string): ApplyBody {
  if (!edit.trim()) throw new Error("There is no edit: copy or select one first.");
  if (workspace && file.saved) {
    return { workspace, path: file.path, edit, mode, expected_sha256: sha256(file.saved) };
  }
  return { original: file.text, path: file.path, edit, mode, expected_sha256: sha256(file.text) };
}

/** A path below a folder as the service names it, with slashes; null for one that is not below it. */
export function pathBelow(folder: string, file: string, separator: string): string | null {
  const start = folder.endsWith(separator) ? folder : folder + separator;
  return file.startsWith(start) ? file.slice(start.length).split(separator).join("/") : null;
}
