/**
 * How a node is spoken to: requests of HTTP, and WebSockets. A browser brings both; Node.js 20 has no WebSocket, and no way to name the
 * authority of a site to the `fetch` that it has, so there both stand on `node:https`.
 */

import { CameraElsewhereError, InvalidRequestError, LinkDownError, ofAnswer, ofClose, ofCode, type TidegateError } from "./errors.js";
import { fields, items, parse, string, type Fields } from "./json.js";

/** Bytes of an image. */
export type Bytes = Uint8Array | ArrayBuffer | Blob;

/** How the caller says who it is, and whom it trusts. */
export interface Credentials {
  /** A token (JWT). */
  readonly token?: string;
  /** A user name; with `password`. */
  readonly user?: string;
  readonly password?: string;
  /** The authority of the site (`ca.pem`), as PEM text. Node.js only: a browser asks its own list. */
  readonly ca?: string | Uint8Array;
  /** The caller's certificate and its key, as PEM text. Node.js only. */
  readonly cert?: string | Uint8Array;
  readonly key?: string | Uint8Array;
  /** The name that the node's certificate must carry, where it is not the host of the address. Node.js only. */
  readonly serverName?: string;
}

/** An answer of HTTP, read to its end. */
export interface Answer {
  readonly status: number;
  readonly body: Uint8Array;
  /** A header by its name in lower case. */
  header(name: string): string | undefined;
}

/** A request of HTTP. */
export interface Request {
  readonly method: "GET" | "POST" | "PUT" | "DELETE";
  /** Below the address of the node, with its query. */
  readonly path: string;
  readonly body?: Bytes;
  readonly type?: string;
  /** In place of the transport's own, for the request that begins a session. */
  readonly authorization?: string;
  readonly signal?: AbortSignal;
}

/** Called with all that a WebSocket receives; `closed` once, last, and not if the program closed it. */
export interface Listener {
  text(text: string): void;
  bytes(bytes: Uint8Array): void;
  closed(error: TidegateError): void;
}

/** An open WebSocket. */
export interface Socket {
  /** Sends one binary message. */
  send(bytes: Uint8Array): void;
  /** Sends one message of text. */
  sendText(text: string): void;
  /** Bytes that were sent and did not leave yet. */
  readonly waitingBytes: number;
  close(): void;
}

/** The way to one node. */
export interface Transport {
  request(request: Request): Promise<Answer>;
  /** Opens a WebSocket on `path`. Fails with the node's reason where the platform tells it. */
  open(path: string, listener: Listener, signal: AbortSignal): Promise<Socket>;
  /** Whether a refused WebSocket comes with the node's reason; a browser keeps it to itself. */
  readonly tellsWhy: boolean;
  close(): void;
}

/** Largest message that is taken over a WebSocket: above the largest frame of a node. */
export const MESSAGE_BYTES_MAX = 64 << 20;
/** How long an answer of HTTP, or the opening of a WebSocket, may take. */
export const ANSWER_MS_MAX = 30_000;

/** The address of a node's API: `https://HOST:PORT`, or `HOST:PORT`; port 7080 where none is named. */
export function addressOf(url: string): URL {
  const text = url.includes("://") ? url : `https://${url}`;
  let address: URL;
  try {
    address = new URL(text);
  } catch {
    throw new InvalidRequestError(`"${url}" is no address of a node; https://HOST:PORT is`, "config.invalid");
  }
  const isPlain = address.pathname === "/" && address.search === "" && address.hash === "" && address.username === "";
  if (!["https:", "http:"].includes(address.protocol) || !isPlain) {
    throw new InvalidRequestError(`"${url}" is no address of a node; https://HOST:PORT is`, "config.invalid");
  }
  const namesPort = /:\d+\/?$/.test(text);
  if (address.port === "" && !namesPort) address.port = "7080";
  return address;
}

/** Whether an address is this machine, so that nothing leaves it in clear. */
export function isLoopback(address: URL): boolean {
  return address.hostname === "localhost" || address.hostname === "[::1]" || /^127(?:\.\d+){3}$/.test(address.hostname);
}

/** The header that says who calls, if a token or a user does. */
export function authorizationOf(credentials: Credentials): string | undefined {
  if (credentials.token !== undefined) return `Bearer ${credentials.token}`;
  if (credentials.user === undefined) return undefined;
  const pair = new TextEncoder().encode(`${credentials.user}:${credentials.password ?? ""}`);
  return `Basic ${btoa(String.fromCharCode(...pair))}`;
}

const ELSEWHERE = "frames.camera.elsewhere";

/** The failure that the error of a node stands for; that of a camera at another node has the node with it. */
export function ofError(error: Fields): TidegateError {
  const [code, text] = [string(error["code"]), string(error["message"])];
  if (code !== ELSEWHERE) return ofCode(code, text);
  return new CameraElsewhereError(text, code, string(error["node"]) || undefined, items(error["addresses"], "addresses").map(string));
}

/** The failure that an answer stands for, or undefined if it is none. */
export function failureOf(answer: Answer, what: string): TidegateError | undefined {
  if (answer.status >= 200 && answer.status < 300) return undefined;
  let code: string | undefined;
  let text = `${what}: the node answered with ${answer.status}`;
  try {
    const error = fields(fields(parse(new TextDecoder().decode(answer.body)), "an answer")["error"], "an error");
    code = string(error["code"]) || undefined;
    text = string(error["message"]) || text;
    if (code === ELSEWHERE) return ofError(error);
  } catch {
    // Another server than a node answered.
  }
  const seconds = Number(answer.header("retry-after") ?? "");
  return ofAnswer(answer.status, code, text, seconds > 0 ? seconds * 1000 : undefined);
}

/** All bytes of an image. */
export async function bytesOf(bytes: Bytes): Promise<Uint8Array> {
  if (bytes instanceof Uint8Array) return bytes;
  return new Uint8Array(bytes instanceof ArrayBuffer ? bytes : await bytes.arrayBuffer());
}

/** Fetch and WebSocket as a browser has them. */
export class BrowserTransport implements Transport {
  readonly tellsWhy = false;
  readonly #address: URL;

  constructor(address: URL, credentials: Credentials) {
    const named = (["ca", "cert", "key", "serverName"] as const).find((name) => credentials[name] !== undefined);
    if (named !== undefined) {
      throw new InvalidRequestError(`"${named}" works in Node.js only; a browser trusts its own list of authorities`, "config.invalid");
    }
    this.#address = address;
  }

  async request(request: Request): Promise<Answer> {
    const headers: Record<string, string> = {};
    // A WebSocket of a browser has no headers of the program's: a session stands for the caller, and its cookie goes by itself.
    if (request.authorization !== undefined) headers["authorization"] = request.authorization;
    if (request.type !== undefined) headers["content-type"] = request.type;
    const late = AbortSignal.timeout(ANSWER_MS_MAX);
    const signal = request.signal === undefined ? late : AbortSignal.any([request.signal, late]);
    const init: RequestInit = { method: request.method, headers, credentials: "include", redirect: "error", signal };
    if (request.body !== undefined) init.body = request.body as BodyInit;
    try {
      const answer = await fetch(new URL(request.path, this.#address), init);
      const body = new Uint8Array(await answer.arrayBuffer());
      return { status: answer.status, body, header: (name) => answer.headers.get(name) ?? undefined };
    } catch (error) {
      if (request.signal?.aborted === true) throw request.signal.reason;
      throw new LinkDownError(`no node answers at ${this.#address.host}: ${reasonOf(error)}`, "link.down", { cause: error });
    }
  }

  open(path: string, listener: Listener, signal: AbortSignal): Promise<Socket> {
    const url = new URL(path, this.#address);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(url);
      socket.binaryType = "arraybuffer";
      let isOpen = false;
      let isOver = false;
      const close = (): void => {
        isOver = true;
        socket.close(1000);
      };
      const giveUp = (error: unknown): void => {
        if (isOpen || isOver) return;
        close();
        reject(error);
      };
      const timer = setTimeout(() => giveUp(new LinkDownError(`no node answers at ${url.host} within ${ANSWER_MS_MAX} ms`)), ANSWER_MS_MAX);
      const abort = (): void => giveUp(signal.reason);
      signal.addEventListener("abort", abort);
      const settled = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", abort);
      };
      socket.onopen = () => {
        settled();
        if (isOver) return;
        isOpen = true;
        resolve({
          send: (bytes) => socket.send(bytes as BufferSource),
          sendText: (text) => socket.send(text),
          get waitingBytes() {
            return socket.bufferedAmount;
          },
          close,
        });
      };
      socket.onmessage = (event: MessageEvent<unknown>) => {
        if (isOver) return;
        if (typeof event.data === "string") listener.text(event.data);
        else listener.bytes(new Uint8Array(event.data as ArrayBuffer));
      };
      // It says no more than the close that follows.
      socket.onerror = () => undefined;
      socket.onclose = (event) => {
        settled();
        if (isOver) return;
        isOver = true;
        if (isOpen) listener.closed(ofClose(event.code, event.reason));
        else reject(new LinkDownError(`no WebSocket of ${url.host}${url.pathname} could be opened`));
      };
    });
  }

  close(): void {
    // Nothing is held.
  }
}

/** The text of an error of the platform, with that of its cause. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message;
}
