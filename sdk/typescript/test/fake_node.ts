/** A node as the SDK sees it: the paths that it serves over HTTP and WebSocket, with answers that a test chooses. */

import { once } from "node:events";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import type { Duplex } from "node:stream";

import { WebSocketServer, type WebSocket } from "ws";

export const USER = { user: "ada", password: "secret" };
export const TOKEN = { token: "good.token" };
/** Not a number that JavaScript can hold. */
export const AT = 1_750_000_000_123_456_789n;
/** Nor is this, which is above what 63 bits hold. */
export const EPOCH = 18_446_744_073_709_551_614n;
export const CAMERA = {
  name: "cam1",
  online: true,
  size: [640, 360],
  fps: 10,
  frame_bytes: 20_000,
  oldest_at: AT - 5_000_000_000n,
  newest_at: AT,
  log_bytes: 1_000_000,
  log_bytes_max: 64_000_000,
  subscriptions: 1,
  transport: "link",
  no_frames: null,
  capture_clock: "its timestamps leap about",
};

/** A request whose body was read. */
export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly headers: http.IncomingHttpHeaders;
  readonly body: Buffer;
}

export interface Reply {
  readonly status?: number;
  readonly json?: unknown;
  readonly bytes?: Uint8Array;
  readonly headers?: Readonly<Record<string, string>>;
}

type Serve = (asked: Asked) => Reply | undefined;
type ServeSocket = (socket: WebSocket, query: URLSearchParams) => void;

/** JSON with whole numbers of any size, as a node writes it. */
export function json(value: unknown): string {
  const text = JSON.stringify(value, (_, each: unknown) => (typeof each === "bigint" ? `n${each}` : each));
  return text.replace(/"n(-?\d+)"/g, "$1");
}

export function failure(status: number, code: string, message: string, headers: Readonly<Record<string, string>> = {}): Reply {
  return { status, json: { error: { code, message } }, headers };
}

/** A frame of `cam1`, `number` tenths of a second behind `AT`. */
export function frame(number: number, more: object = {}): string {
  return json({
    type: "frame",
    captured_at: AT + BigInt(number) * 100_000_000n,
    epoch: EPOCH,
    size: [320, 180],
    source_size: [640, 360],
    knobs: "1/2 q60",
    accuracy: 0.97,
    accuracy_kept: true,
    stages: { capture_ms: 1, encode_ms: 2, queue_ms: 3, network_ms: 4, delivery_ms: 5 },
    latency_ms: 15.5,
    reason: "fits",
    ...more,
  });
}

/** Some bytes in place of a picture, which say which one it is. */
export function picture(number: number): Buffer {
  return Buffer.from(`picture ${number}`);
}

export function sendFrame(socket: WebSocket, number: number, more: object = {}): void {
  socket.send(frame(number, more));
  socket.send(picture(number));
}

export function sendEvent(socket: WebSocket, event: object): void {
  socket.send(json(event));
}

export class FakeNode {
  /** Answers by method and path; a test may replace any. */
  readonly answers = new Map<string, Serve>();
  /** Called with each WebSocket that opens, by its path. */
  readonly sockets = new Map<string, ServeSocket>();
  /** Cameras of other nodes, by their names. */
  readonly elsewhere = new Map<string, { readonly node: string; readonly addresses: readonly string[] }>();
  /** WebSockets open when this is settled. */
  gate: Promise<void> | undefined;
  /** All requests and openings, in order. */
  readonly log: string[] = [];
  /** The paths that need no proof; all of them for a browser in the same process, which has no cookies. */
  isOpen = false;
  readonly #server: http.Server;
  readonly #upgrades = new WebSocketServer({ noServer: true });
  readonly #streams = new Set<Duplex>();

  constructor(server: http.Server = http.createServer()) {
    this.#server = server;
    server.on("request", (request, response) => void this.#answer(request, response));
    server.on("upgrade", (request: http.IncomingMessage, stream: Duplex, head: Buffer) => void this.#upgrade(request, stream, head));
    server.on("connection", (stream) => {
      this.#streams.add(stream);
      stream.on("close", () => this.#streams.delete(stream));
    });
    const me = { name: "ada", kind: "user", until: AT + 3_600_000_000_000n, admin: false, node: "edge", version: "0.1.0" };
    this.answers.set("GET /v1/me", () => ({ json: me }));
    this.answers.set("POST /v1/login", (asked) =>
      isKnown(asked.headers) ? { json: me, headers: { "set-cookie": "session=s; Path=/; HttpOnly; SameSite=Strict" } } : undefined,
    );
    this.answers.set("GET /cameras", () => ({ json: { cameras: [{ ...CAMERA, name: "cam2", online: false, capture_clock: null }, CAMERA] } }));
    this.answers.set("GET /cameras/cam1/snapshot.jpg", (asked) => {
      const at = asked.query.get("at");
      if (at === "1") return failure(404, "frames.frame.missing", "the log begins later");
      return { bytes: picture(0), headers: { "tidegate-captured-at": at ?? `${AT}`, "content-type": "image/jpeg" } };
    });
    this.answers.set("GET /v1/models", () => ({ json: { models: [{ name: "face" }, { name: "person" }] } }));
    this.answers.set("POST /v1/detect/face", (asked) => ({ json: found(asked.body) }));
  }

  static async start(server?: http.Server): Promise<FakeNode> {
    const node = new FakeNode(server);
    await node.listen(0);
    return node;
  }

  async listen(port: number): Promise<void> {
    this.#server.listen(port, "127.0.0.1");
    await once(this.#server, "listening");
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Breaks every connection, as a power cut would. */
  cut(): void {
    for (const stream of this.#streams) stream.destroy();
  }

  async stop(): Promise<void> {
    this.#server.close();
    this.cut();
    if (this.#server.listening) await once(this.#server, "close");
  }

  async #answer(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const parts: Buffer[] = [];
    for await (const part of request as AsyncIterable<Buffer>) parts.push(part);
    const url = new URL(request.url ?? "/", "http://node");
    const key = `${request.method} ${url.pathname}`;
    this.log.push(key);
    const asked = { method: request.method ?? "", path: url.pathname, query: url.searchParams, headers: request.headers, body: Buffer.concat(parts) };
    const isPublic = this.isOpen || url.pathname === "/v1/login" || url.pathname.startsWith("/public/");
    const refused = failure(401, "auth.identity.refused", "who are you?");
    const reply = isPublic || isKnown(request.headers) ? (this.#moved(url.pathname) ?? this.answers.get(key)?.(asked)) : refused;
    const { status = 200, json: told, bytes, headers = {} } = reply ?? (key === "POST /v1/login" ? refused : unknown(url.pathname));
    response.writeHead(status, { ...(told !== undefined && { "content-type": "application/json" }), ...headers });
    response.end(told === undefined ? bytes : json(told));
  }

  /** The answer for a camera of another node. */
  #moved(path: string): Reply | undefined {
    const camera = /^\/cameras\/([^/]+)\//.exec(path)?.[1] ?? "";
    const place = this.elsewhere.get(camera);
    const message = `camera ${camera} is at node ${place?.node}`;
    return place && { status: 421, json: { error: { code: "frames.camera.elsewhere", message, ...place } } };
  }

  async #upgrade(request: http.IncomingMessage, stream: Duplex, head: Buffer): Promise<void> {
    const url = new URL(request.url ?? "/", "http://node");
    this.log.push(`WS ${url.pathname}`);
    await this.gate;
    const serve = this.sockets.get(url.pathname);
    const isLetIn = this.isOpen || isKnown(request.headers);
    const moved = this.#moved(url.pathname);
    if (isLetIn && moved === undefined && serve !== undefined) {
      this.#upgrades.handleUpgrade(request, stream, head, (socket) => serve(socket, url.searchParams));
      return;
    }
    const camera = /^\/cameras\/([^/]+)\/frames$/.exec(url.pathname)?.[1];
    const { status, json: told } = !isLetIn
      ? failure(401, "auth.identity.refused", "who are you?")
      : moved !== undefined
        ? moved
        : camera === undefined
          ? failure(404, "vision.model.unknown", "there are face, person")
          : failure(404, "frames.camera.unknown", `no camera ${camera}`);
    const body = json(told);
    stream.end(`HTTP/1.1 ${status} No\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`);
  }
}

function unknown(path: string): Reply {
  return failure(404, "request.path.unknown", `there is nothing at ${path}`);
}

function isKnown(headers: http.IncomingHttpHeaders): boolean {
  const basic = `Basic ${Buffer.from(`${USER.user}:${USER.password}`).toString("base64")}`;
  return headers.authorization === basic || headers.authorization === `Bearer ${TOKEN.token}` || headers.cookie === "session=s";
}

/** An answer whose first box is as wide as the image has bytes. */
export function found(image: Uint8Array, more: object = {}): object {
  return {
    model: "face",
    image: { width: 640, height: 480 },
    predictions: [],
    boxes: [[1, 2, 1 + image.byteLength, 40, 0.9, "face"]],
    classes: [[0.8, "street"]],
    poses: [[[1, 2, 0.5]]],
    times: { queue_ms: 1, decode_ms: 2, infer_ms: 3, total_ms: 6 },
    ...more,
  };
}

/** The first answer that is something; fails when there is none in time. */
export async function poll<T>(ask: () => T | undefined | false): Promise<T> {
  const end = Date.now() + 10_000;
  for (;;) {
    const said = ask();
    if (said !== undefined && said !== false) return said;
    if (Date.now() > end) throw new Error(`nothing within 10 s: ${ask.toString()}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
