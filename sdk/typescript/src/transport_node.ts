/** HTTP and WebSocket (RFC 6455) on `node:https`, with an authority and a certificate of the caller's choice. */

import { createHash, randomBytes } from "node:crypto";
import * as http from "node:http";
import * as https from "node:https";
import type { Duplex } from "node:stream";

import { IdentityRefusedError, LinkDownError, malformed, ofClose, TidegateError } from "./errors.js";
import {
  ANSWER_MS_MAX,
  authorizationOf,
  bytesOf,
  failureOf,
  MESSAGE_BYTES_MAX,
  type Answer,
  type Credentials,
  type Listener,
  type Request,
  type Socket,
  type Transport,
} from "./transport.js";

/** A connection that is silent for so long is asked for a sign of life; one that stays silent for as long again is broken. */
const SILENCE_MS_MAX = 10_000;
/** For the word of a node that it wants a body, before that is sent without one. */
const CONTINUE_MS_MAX = 5_000;
const HANDSHAKE_KEY = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** Requests over connections that are kept, and WebSockets that carry the caller's identity themselves. */
export class NodeTransport implements Transport {
  readonly tellsWhy = true;
  readonly #address: URL;
  readonly #authorization: string | undefined;
  readonly #agent: http.Agent;
  readonly #tls: https.AgentOptions;
  readonly #relays: boolean;

  /** `relays`: whether the node is to fetch from another one what that one has, or to name it. */
  constructor(address: URL, credentials: Credentials, relays = true) {
    this.#address = address;
    this.#relays = relays;
    this.#authorization = authorizationOf(credentials);
    const tls: https.AgentOptions = {};
    const pem = (given: string | Uint8Array): string | Buffer => (typeof given === "string" ? given : Buffer.from(given));
    if (credentials.ca !== undefined) tls.ca = pem(credentials.ca);
    if (credentials.cert !== undefined) tls.cert = pem(credentials.cert);
    if (credentials.key !== undefined) tls.key = pem(credentials.key);
    if (credentials.serverName !== undefined) tls.servername = credentials.serverName;
    this.#tls = tls;
    this.#agent = address.protocol === "https:" ? new https.Agent({ ...tls, keepAlive: true }) : new http.Agent({ keepAlive: true });
  }

  async request(request: Request): Promise<Answer> {
    const body = request.body === undefined ? undefined : await bytesOf(request.body);
    const headers: http.OutgoingHttpHeaders = {};
    const authorization = request.authorization ?? this.#authorization;
    if (authorization !== undefined) headers["authorization"] = authorization;
    if (!this.#relays) headers["tidegate-relay"] = "0";
    if (request.type !== undefined) headers["content-type"] = request.type;
    if (body !== undefined) headers["content-length"] = body.byteLength;
    // A kept connection may be closed by the node as the request leaves: it was not looked at then, and is sent once more.
    for (let isAgain = false; ; isAgain = true) {
      const { asked, answered } = this.#ask(request, headers, body);
      try {
        return await answered;
      } catch (error) {
        const mayAsk = !isAgain && request.signal?.aborted !== true;
        if (mayAsk && body !== undefined && !asked.writableFinished && ["ECONNRESET", "EPIPE"].includes(codeOf(error))) {
          // The node has answered before it read the body, and reads no more of it: Node.js drops what came when sending fails, so the answer
          // is asked for before the body is sent (RFC 9110, section 10.1.1).
          headers["expect"] = "100-continue";
          continue;
        }
        if (mayAsk && asked.reusedSocket && codeOf(error) === "ECONNRESET") continue;
        throw error instanceof TidegateError || request.signal?.aborted === true ? error : this.#unreachable(error);
      }
    }
  }

  #ask(
    request: Request,
    headers: http.OutgoingHttpHeaders,
    body: Uint8Array | undefined,
  ): { asked: http.ClientRequest; answered: Promise<Answer> } {
    const options: https.RequestOptions = { method: request.method, headers, agent: this.#agent, timeout: ANSWER_MS_MAX };
    if (request.signal !== undefined) options.signal = request.signal;
    const url = new URL(request.path, this.#address);
    const asked = (url.protocol === "https:" ? https : http).request(url, options);
    const answered = new Promise<Answer>((resolve, reject) => {
      asked.on("timeout", () => asked.destroy(new LinkDownError(`no answer from ${url.host} within ${ANSWER_MS_MAX} ms`)));
      asked.on("error", (error) => reject(request.signal?.aborted === true ? request.signal.reason : error));
      asked.on("response", (answer) => {
        const read = readAnswer(answer).finally(() => {
          // A body that was not sent is not wanted, and no other request follows where it would stand.
          if (!asked.writableEnded) asked.destroy();
        });
        void read.then(resolve, reject);
      });
    });
    if (headers["expect"] === undefined) {
      asked.end(body);
    } else {
      const send = (): void => void (asked.writableEnded || asked.destroyed || asked.end(body));
      // Something between may not know of it.
      const timer = setTimeout(send, CONTINUE_MS_MAX);
      asked.on("continue", send);
      asked.on("response", () => clearTimeout(timer));
      asked.on("close", () => clearTimeout(timer));
      asked.flushHeaders();
    }
    return { asked, answered };
  }

  open(path: string, listener: Listener, signal: AbortSignal): Promise<Socket> {
    const url = new URL(path, this.#address);
    const key = randomBytes(16).toString("base64");
    const headers: http.OutgoingHttpHeaders = {
      connection: "Upgrade",
      upgrade: "websocket",
      "sec-websocket-key": key,
      "sec-websocket-version": "13",
    };
    if (this.#authorization !== undefined) headers["authorization"] = this.#authorization;
    if (!this.#relays) headers["tidegate-relay"] = "0";
    const isTls = url.protocol === "https:";
    // Not from the agent: the connection is the WebSocket's from here on.
    const options: https.RequestOptions = { headers, timeout: ANSWER_MS_MAX, signal, agent: false, ...(isTls ? this.#tls : {}) };
    return new Promise((resolve, reject) => {
      const asked = (isTls ? https : http).request(url, options);
      asked.on("timeout", () => asked.destroy(new LinkDownError(`no answer from ${url.host} within ${ANSWER_MS_MAX} ms`)));
      asked.on("error", (error) => {
        if (signal.aborted) reject(signal.reason);
        else reject(error instanceof TidegateError ? error : this.#unreachable(error));
      });
      asked.on("response", (answer) => {
        const what = `WebSocket ${url.pathname}`;
        void readAnswer(answer).then((read) => reject(failureOf(read, what) ?? malformed(`no WebSocket for ${url.pathname}`)), reject);
      });
      asked.on("upgrade", (answer, stream, head) => {
        stream.setTimeout(0);
        const expected = createHash("sha1").update(key + HANDSHAKE_KEY).digest("base64");
        if (answer.headers["sec-websocket-accept"] !== expected) {
          stream.destroy();
          reject(malformed("the opening of a WebSocket that answers another request"));
          return;
        }
        resolve(new NodeSocket(stream, head, listener));
      });
      asked.end();
    });
  }

  close(): void {
    this.#agent.destroy();
  }

  #unreachable(error: unknown): TidegateError {
    const code = codeOf(error);
    const text = error instanceof Error ? error.message || code : String(error);
    const isRefusal = /CERT|SSL|TLS|SIGNATURE|ISSUER|ALTNAME/.test(code);
    if (isRefusal) {
      const way = "`ca` names the authority of the site, `ca.pem` of `tidegate init`";
      return new IdentityRefusedError(`the certificates are not accepted: ${text}; ${way}`, "auth.identity.refused", { cause: error });
    }
    return new LinkDownError(`no node answers at ${this.#address.host}: ${text}`, "link.down", { cause: error });
  }
}

function codeOf(error: unknown): string {
  const code: unknown = error instanceof Error && "code" in error ? error.code : undefined;
  return typeof code === "string" ? code : "";
}

async function readAnswer(answer: http.IncomingMessage): Promise<Answer> {
  const parts: Buffer[] = [];
  let bytes = 0;
  for await (const part of answer as AsyncIterable<Buffer>) {
    bytes += part.byteLength;
    if (bytes > MESSAGE_BYTES_MAX) {
      answer.destroy();
      throw malformed(`an answer of more than ${MESSAGE_BYTES_MAX} bytes`);
    }
    parts.push(part);
  }
  const { headers, statusCode } = answer;
  const header = (name: string): string | undefined => {
    const value = headers[name];
    return Array.isArray(value) ? value[0] : value;
  };
  return { status: statusCode ?? 0, body: Buffer.concat(parts), header };
}

const CONTINUATION = 0;
const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const PING = 9;
const PONG = 10;

/** The client's side of one WebSocket, after its opening. */
class NodeSocket implements Socket {
  readonly #stream: Duplex;
  readonly #listener: Listener;
  readonly #parts: Buffer[] = [];
  #partsBytes = 0;
  /** The kind of the message whose fragments have begun to come; 0 between two messages. */
  #kind = CONTINUATION;
  readonly #fragments: Buffer[] = [];
  #fragmentsBytes = 0;
  #isOver = false;
  #isAsked = false;
  readonly #watch: NodeJS.Timeout;

  constructor(stream: Duplex, head: Buffer, listener: Listener) {
    this.#stream = stream;
    this.#listener = listener;
    if ("setNoDelay" in stream && typeof stream.setNoDelay === "function") stream.setNoDelay(true);
    this.#watch = setInterval(() => this.#check(), SILENCE_MS_MAX);
    this.#watch.unref();
    stream.on("error", (error) => this.#over(new LinkDownError(`the connection broke: ${error.message}`)));
    stream.on("close", () => this.#over(new LinkDownError("the connection broke")));
    stream.on("end", () => stream.destroy());
    // The program has the socket before it gets the first message.
    setImmediate(() => {
      stream.on("data", (part: Buffer) => this.#take(part));
      if (head.byteLength > 0) this.#take(head);
    });
  }

  get waitingBytes(): number {
    return this.#stream.writableLength;
  }

  send(bytes: Uint8Array): void {
    if (!this.#isOver) this.#write(BINARY, bytes);
  }

  sendText(text: string): void {
    if (!this.#isOver) this.#write(TEXT, Buffer.from(text));
  }

  close(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearInterval(this.#watch);
    this.#write(CLOSE, new Uint8Array([1000 >> 8, 1000 & 255]));
    this.#stream.end();
    // A peer that does not close its side is not waited for.
    const timer = setTimeout(() => this.#stream.destroy(), 1000);
    timer.unref();
    this.#stream.once("close", () => clearTimeout(timer));
    this.#stream.resume();
  }

  /** Ends it with a reason that the listener is told. */
  #over(error: TidegateError): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearInterval(this.#watch);
    this.#stream.destroy();
    this.#listener.closed(error);
  }

  #check(): void {
    if (this.#isAsked) return this.#over(new LinkDownError(`the node was silent for ${(2 * SILENCE_MS_MAX) / 1000} s`));
    this.#isAsked = true;
    this.#write(PING, new Uint8Array());
  }

  #take(part: Buffer): void {
    if (this.#isOver) return;
    this.#isAsked = false;
    this.#parts.push(part);
    this.#partsBytes += part.byteLength;
    try {
      while (!this.#isOver && this.#frame());
    } catch (error) {
      this.#over(error instanceof TidegateError ? error : new TidegateError(String(error), "internal", { cause: error }));
    }
  }

  /** Handles one frame; false if it has not come whole. */
  #frame(): boolean {
    const head = this.#peek(14);
    const first = head[0];
    const second = head[1];
    if (first === undefined || second === undefined) return false;
    const kind = first & 15;
    const isLast = (first & 0x80) !== 0;
    if ((first & 0x70) !== 0) throw malformed("a WebSocket frame of an extension");
    if ((second & 0x80) !== 0) throw malformed("a WebSocket frame with a mask");
    let length = second & 0x7f;
    let begin = 2;
    if (length === 126) {
      begin = 4;
      if (head.byteLength < begin) return false;
      length = head.readUInt16BE(2);
    } else if (length === 127) {
      begin = 10;
      if (head.byteLength < begin) return false;
      const long = head.readBigUInt64BE(2);
      length = long > BigInt(MESSAGE_BYTES_MAX) ? MESSAGE_BYTES_MAX + 1 : Number(long);
    }
    if (kind >= CLOSE && (length > 125 || !isLast)) throw malformed("a control frame of WebSocket that is too long");
    if (length + this.#fragmentsBytes > MESSAGE_BYTES_MAX) throw malformed(`a message of more than ${MESSAGE_BYTES_MAX} bytes`);
    if (this.#partsBytes < begin + length) return false;
    const body = this.#pull(begin + length).subarray(begin);
    if (kind >= CLOSE) this.#control(kind, body);
    else this.#data(kind, isLast, body);
    return true;
  }

  #control(kind: number, body: Buffer): void {
    if (kind === PING) return this.#write(PONG, body);
    if (kind === PONG) return;
    if (kind !== CLOSE) throw malformed(`a WebSocket frame of the kind ${kind}`);
    const code = body.byteLength >= 2 ? body.readUInt16BE(0) : 1005;
    this.#write(CLOSE, body.subarray(0, 2));
    this.#stream.end();
    this.#over(ofClose(code, body.subarray(2).toString("utf8")));
  }

  #data(kind: number, isLast: boolean, body: Buffer): void {
    const isFollowing = kind === CONTINUATION;
    if (isFollowing !== (this.#kind !== CONTINUATION) || kind > BINARY) throw malformed(`a WebSocket frame of the kind ${kind} out of turn`);
    if (!isFollowing) this.#kind = kind;
    this.#fragments.push(body);
    this.#fragmentsBytes += body.byteLength;
    if (!isLast) return;
    const whole = this.#fragments.length === 1 ? body : Buffer.concat(this.#fragments);
    const told = this.#kind;
    this.#fragments.length = 0;
    this.#fragmentsBytes = 0;
    this.#kind = CONTINUATION;
    if (told === TEXT) this.#listener.text(whole.toString("utf8"));
    else this.#listener.bytes(new Uint8Array(whole.buffer, whole.byteOffset, whole.byteLength));
  }

  #write(kind: number, body: Uint8Array): void {
    if (this.#stream.destroyed || this.#stream.writableEnded) return;
    const length = body.byteLength;
    const extended = length < 126 ? 0 : length < 65536 ? 2 : 8;
    const begin = 2 + extended + 4;
    // The body begins at a multiple of four bytes, so that it is masked by words: three times as fast.
    const shift = -begin & 3;
    const room = new ArrayBuffer(shift + begin + length + (-length & 3));
    const frame = Buffer.from(room, shift, begin + length);
    frame[0] = 0x80 | kind;
    frame[1] = 0x80 | (extended === 0 ? length : extended === 2 ? 126 : 127);
    if (extended === 2) frame.writeUInt16BE(length, 2);
    if (extended === 8) frame.writeBigUInt64BE(BigInt(length), 2);
    const mask = Uint8Array.from(randomBytes(4));
    frame.set(mask, begin - 4);
    frame.set(body, begin);
    const words = new Uint32Array(room, shift + begin);
    const word = new Uint32Array(mask.buffer)[0] as number;
    for (let at = 0; at < words.length; at++) words[at] = (words[at] as number) ^ word;
    this.#stream.write(frame);
  }

  /** Up to so many bytes from the front, which stay. */
  #peek(bytes: number): Buffer {
    const first = this.#parts[0];
    if (first === undefined) return Buffer.alloc(0);
    if (first.byteLength >= bytes || this.#parts.length === 1) return first.subarray(0, bytes);
    // A head that is spread over parts is rare: the first parts are joined.
    const joined = Buffer.concat(this.#parts.splice(0, 2));
    this.#parts.unshift(joined);
    return this.#peek(bytes);
  }

  /** Takes exactly so many bytes from the front. */
  #pull(bytes: number): Buffer {
    const first = this.#parts[0] as Buffer;
    this.#partsBytes -= bytes;
    if (first.byteLength > bytes) {
      this.#parts[0] = first.subarray(bytes);
      return first.subarray(0, bytes);
    }
    if (first.byteLength === bytes) return this.#parts.shift() as Buffer;
    const whole = Buffer.allocUnsafe(bytes);
    let filled = 0;
    while (filled < bytes) {
      const part = this.#parts.shift() as Buffer;
      const taken = part.subarray(0, bytes - filled);
      whole.set(taken, filled);
      filled += taken.byteLength;
      if (taken.byteLength < part.byteLength) this.#parts.unshift(part.subarray(taken.byteLength));
    }
    return whole;
  }
}
