// Sends requests to the service, and nothing to anybody else.

import type { ApplyBody } from "./request.js";

export interface Service {
  readonly url: string;
  readonly token: string;
  readonly timeoutMs: number;
}

/** A status and the JSON that came with it. */
export interface Reply {
  readonly status: number;
  readonly body: unknown;
  readonly retryAfter: string | null;
}

/** The service cannot be asked, or does not answer; the message says what to do. */
export class Unreachable extends Error {}

/** Nobody listens there, or a browser may not ask: starting a service, or another address, helps. */
export class NoService extends Unreachable {}

/** Asks for a merge; nothing is written by the service. Throws Unreachable, or an AbortError when it is cancelled. */
export async function apply(service: Service, body: ApplyBody, cancelled?: AbortSignal): Promise<Reply> {
  const address = addressOf(service);
  const signals = [AbortSignal.timeout(service.timeoutMs), ...(cancelled ? [cancelled] : [])];
  const headers: Record<string, string> = { "Content-Type": "application/json", Accept: "application/json" };
  if (service.token) headers["Authorization"] = `Bearer ${service.token}`;
  try {
    const response = await fetch(address, {
      method: "POST",
      headers,
      body: JSON.stringify(body),
      redirect: "error",
      signal: AbortSignal.any(signals),
    });
    return {
      status: response.status,
      body: await response.json().catch(() => null),
      retryAfter: response.headers.get("Retry-After"),
    };
  } catch (error) {
    if (cancelled?.aborted) throw error;
    if (error instanceof Error && error.name === "TimeoutError") {
      throw new Unreachable(`No answer from ${service.url} within ${service.timeoutMs / 1000} s (hunk.timeoutSeconds).`);
    }
    const inBrowser = "WorkerGlobalScope" in globalThis;
    const advice = inBrowser ? " VS Code runs in a browser here, which asks services at its own address only." : "";
    throw new NoService(`No Hunk service answers at ${service.url} (${reason(error)}).${advice}`);
  }
}

function addressOf({ url, token }: Service): URL {
  let address: URL;
  try {
    address = new URL("apply", url.endsWith("/") ? url : `${url}/`);
  } catch {
    throw new Unreachable(`hunk.url is not a URL: ${url}`);
  }
  if (address.protocol !== "http:" && address.protocol !== "https:") {
    throw new Unreachable(`hunk.url begins with ${address.protocol}//, not with http:// or https://`);
  }
  if (token && address.protocol === "http:" && !isThisMachine(address.hostname)) {
    throw new Unreachable(`The token is not sent to ${address.host} in the clear: use https://, or a tunnel.`);
  }
  return address;
}

function isThisMachine(host: string): boolean {
  return host === "localhost" || host === "[::1]" || /^127(\.\d+){3}$/.test(host);
}

function reason(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? error.cause.message || error.cause.name : error.message;
}
