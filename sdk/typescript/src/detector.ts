/** A connection that stays, over which images go to a model and answers come back, many under way at once. */

import { detectionsOf, type Detections } from "./detections.js";
import { InvalidRequestError, LimitReachedError, LinkDownError, malformed, ofAnswer, TidegateError } from "./errors.js";
import { fields, number, parse, string } from "./json.js";
import { pause, waitMs, type Retries } from "./retries.js";
import { bytesOf, type Bytes, type Socket, type Transport } from "./transport.js";

/** How a detector is used. */
export interface DetectorOptions {
  /** Images that are sent before the first is answered, 1 to 64; 4 by default. */
  readonly inFlight?: number;
  /** Images that wait to be sent, 0 to 64; the oldest is given up with `LimitReachedError` when there are more. 1 by default. */
  readonly waiting?: number;
  /** Longest time from the call to its answer, in ms; 30000 by default. */
  readonly timeoutMs?: number;
}

interface Asked {
  readonly image: Uint8Array;
  readonly resolve: (found: Detections) => void;
  readonly reject: (error: unknown) => void;
  readonly timer: ReturnType<typeof setTimeout>;
  /** Connections that broke under it. */
  broken: number;
}

/** An image whose connection broke is sent once more, and not again: it may be the reason. */
const BROKEN_MAX = 1;
const ID_BYTES = 8;

/**
 * Sends images to one model over one WebSocket. It opens at the first image, and again after it broke.
 *
 * Always true: each call is settled once; at most `inFlight` images are sent and unanswered, and at most `waiting` wait.
 */
export class DetectorSocket {
  /** The model's name. */
  readonly model: string;
  /** Images that were given up for newer ones. */
  skipped = 0;
  readonly #transport: Transport;
  readonly #retries: Retries;
  readonly #inFlightMax: number;
  readonly #waitingMax: number;
  readonly #timeoutMs: number;
  readonly #stop = new AbortController();
  readonly #explain: () => Promise<void>;
  readonly #onEnd: (socket: DetectorSocket) => void;
  readonly #waiting: Asked[] = [];
  readonly #sent = new Map<number, Asked>();
  #nextId = 1;
  #socket: Socket | undefined;
  #isOpening = false;

  /** Made by `Client.detector`. */
  constructor(
    transport: Transport,
    retries: Retries,
    model: string,
    options: DetectorOptions,
    explain: () => Promise<void>,
    onEnd: (socket: DetectorSocket) => void,
  ) {
    const { inFlight = 4, waiting = 1, timeoutMs = 30_000 } = options;
    const invalid = (text: string): InvalidRequestError => new InvalidRequestError(text, "config.invalid");
    if (!(Number.isInteger(inFlight) && inFlight >= 1 && inFlight <= 64)) throw invalid(`${inFlight} in flight are out of range: 1 to 64`);
    if (!(Number.isInteger(waiting) && waiting >= 0 && waiting <= 64)) throw invalid(`${waiting} waiting are out of range: 0 to 64`);
    if (!(timeoutMs > 0 && timeoutMs <= 600_000)) throw invalid(`a timeout of ${timeoutMs} ms is out of range: up to 600000 ms`);
    this.model = model;
    this.#transport = transport;
    this.#retries = retries;
    this.#inFlightMax = inFlight;
    this.#waitingMax = waiting;
    this.#timeoutMs = timeoutMs;
    this.#explain = explain;
    this.#onEnd = onEnd;
  }

  /** Images that are sent and not answered. */
  get inFlight(): number {
    return this.#sent.size;
  }

  /**
   * The findings of the model in a JPEG or PNG image.
   *
   * Fails with `LimitReachedError` where the node is full (`limit.reached`), or where newer images took its place before it was sent
   * (`sdk.overtaken`); with `ModelUnknownError`, `ImageRefusedError`, `DetectorFailedError`, `IdentityRefusedError`, `ActionDeniedError`,
   * and with `LinkDownError` where the node is not reached or does not answer in time.
   */
  async detect(image: Bytes): Promise<Detections> {
    const bytes = await bytesOf(image);
    if (this.#stop.signal.aborted) throw closed();
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#forget(asked);
        reject(new LinkDownError(`the node did not answer within ${this.#timeoutMs} ms`));
        this.#pump();
      }, this.#timeoutMs);
      const asked: Asked = { image: bytes, resolve, reject, timer, broken: 0 };
      this.#waiting.push(asked);
      this.#pump();
      const room = this.#waitingMax + (this.#socket === undefined ? this.#inFlightMax : 0);
      while (this.#waiting.length > room) {
        this.skipped++;
        const text = `newer images took its place: ${this.#inFlightMax} are under way and ${this.#waitingMax} may wait`;
        this.#settle(this.#waiting[0] as Asked, new LimitReachedError(text, "sdk.overtaken"));
      }
    });
  }

  /** Ends the connection; calls under way fail. Idempotent. */
  close(): void {
    this.#stop.abort(closed());
    this.#socket?.close();
    this.#socket = undefined;
    for (const asked of this.#all()) this.#settle(asked, closed());
    this.#onEnd(this);
  }

  /** Sends what may be sent. */
  #pump(): void {
    if (this.#socket === undefined) {
      if (this.#waiting.length > 0 && !this.#isOpening) void this.#open();
      return;
    }
    while (this.#sent.size < this.#inFlightMax) {
      const asked = this.#waiting.shift();
      if (asked === undefined) return;
      const id = this.#nextId++;
      this.#sent.set(id, asked);
      const message = new Uint8Array(ID_BYTES + asked.image.byteLength);
      new DataView(message.buffer).setBigUint64(0, BigInt(id));
      message.set(asked.image, ID_BYTES);
      this.#socket.send(message);
    }
  }

  async #open(): Promise<void> {
    const { signal } = this.#stop;
    const path = `/v1/detect/${encodeURIComponent(this.model)}?ids=1`;
    const listener = {
      text: (text: string) => this.#text(text),
      bytes: () => this.#over(malformed("bytes in place of an answer")),
      closed: (error: TidegateError) => this.#over(error),
    };
    this.#isOpening = true;
    let failure: unknown;
    for (let tries = 0; ; tries++) {
      try {
        this.#socket = await this.#transport.open(path, listener, signal);
        failure = undefined;
        break;
      } catch (error) {
        failure = error;
        if (!this.#transport.tellsWhy && error instanceof LinkDownError) failure = await this.#explain().then(() => error, (why: unknown) => why);
        if (signal.aborted || !(failure instanceof LinkDownError) || tries >= this.#retries.max || this.#waiting.length === 0) break;
        await pause(waitMs(this.#retries, tries), signal);
      }
    }
    this.#isOpening = false;
    if (failure === undefined && signal.aborted) this.#socket?.close();
    else if (failure === undefined) this.#pump();
    else for (const asked of this.#all()) this.#settle(asked, failure);
  }

  #text(text: string): void {
    try {
      const told = fields(parse(text), "an answer of a detector");
      const id = number(told["id"], -1);
      const asked = this.#sent.get(id);
      // One that was given up meanwhile.
      if (asked === undefined) return;
      if (told["error"] === undefined) {
        const found = detectionsOf(told);
        this.#settle(asked, undefined, found);
      } else {
        const error = fields(told["error"], "an error");
        this.#settle(asked, ofAnswer(number(error["status"], 422), string(error["code"]) || undefined, string(error["message"])));
      }
      this.#pump();
    } catch (error) {
      this.#over(error);
    }
  }

  /** The connection is over: what was under way goes once more, if that may help. */
  #over(error: unknown): void {
    this.#socket?.close();
    this.#socket = undefined;
    const broken = [...this.#sent.values()];
    this.#sent.clear();
    for (const asked of broken.reverse()) {
      if (error instanceof LinkDownError && asked.broken++ < BROKEN_MAX) this.#waiting.unshift(asked);
      else this.#settle(asked, error);
    }
    if (!(error instanceof LinkDownError)) for (const asked of this.#all()) this.#settle(asked, error);
    this.#pump();
  }

  #all(): Asked[] {
    return [...this.#sent.values(), ...this.#waiting];
  }

  #settle(asked: Asked, error: unknown, found?: Detections): void {
    this.#forget(asked);
    if (found === undefined) asked.reject(error);
    else asked.resolve(found);
  }

  #forget(asked: Asked): void {
    clearTimeout(asked.timer);
    const place = this.#waiting.indexOf(asked);
    if (place >= 0) this.#waiting.splice(place, 1);
    for (const [id, sent] of this.#sent) if (sent === asked) this.#sent.delete(id);
  }
}

function closed(): LinkDownError {
  return new LinkDownError("the detector is closed", "sdk.closed");
}
