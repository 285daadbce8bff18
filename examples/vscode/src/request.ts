// What is asked of the service: one edit of one file, dry, with the hash of the file that it is meant for.

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

/** By the web's interface, which Node and browsers have. */
export async function sha256(data: string | Uint8Array): Promise<string> {
  const bytes = typeof data === "string" ? new TextEncoder().encode(data) : new Uint8Array(data);
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * The body of the request. A saved file of a workspace is named, with the hash of its bytes, so that the service
 * refuses (409) where it has another one; any other text is sent along.
 */
export async function applyBody(file: OpenFile, edit: string, mode: Mode, workspace: string): Promise<ApplyBody> {
  if (!edit.trim()) throw new Error("There is no edit: copy or select one first.");
  if (workspace && file.saved) {
    return { workspace, path: file.path, edit, mode, expected_sha256: await sha256(file.saved) };
  }
  return { original: file.text, path: file.path, edit, mode, expected_sha256: await sha256(file.text) };
}

/** A path below a folder as the service names it; null for one that is not below it. Both are paths of URIs. */
export function pathBelow(folder: string, file: string): string | null {
  const start = folder.endsWith("/") ? folder : `${folder}/`;
  return file.startsWith(start) ? file.slice(start.length) : null;
}
