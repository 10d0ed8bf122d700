/**
 * Streams over a WebSocket that come back by themselves.
 *
 *     WebSocket ──▶ Reader (what a message means) ──▶ queue, newest first ──▶ `for await`
 *        ▲  broken: wait, open again  │
 *        └────────────────────────────┘
 */

import { CameraOfflineError, InvalidRequestError, LimitReachedError, LinkDownError, malformed, TidegateError } from "./errors.js";
import { liveDetectionOf, type LiveDetection } from "./detections.js";
import {
  boundsTold,
  Frame,
  noticeOf,
  type Bounds,
  type CameraOffline,
  type Event,
  type Infeasible,
  type NoFrames,
  type Notice,
  type Silent,
} from "./frames.js";
import { fields, parse, type Fields } from "./json.js";
import { NewestQueue } from "./queue.js";
import { pause, waitMs, type Retries } from "./retries.js";
import { LOOK_EVERY_MS, noPicture, REOPEN_AFTER_MS, Silence } from "./silence.js";
import { ofError, type Socket, type Transport } from "./transport.js";

/** Makes items of the messages of one stream, over all its connections. */
interface Reader<T> {
  /** The path to open, with its query; asked for once for each connection. */
  path(): string;
  /** Looks for the reason why no WebSocket could be opened, where the platform does not tell it. */
  explain(): Promise<void>;
  text(message: Fields): void;
  bytes(bytes: Uint8Array): void;
  /** The connection is broken, for the first time since it was there. */
  broken(error: TidegateError): void;
  /** It is there again. */
  back(): void;
  /** Whether nothing follows. */
  readonly isComplete: boolean;
  /** Tells of the socket that is open, for what the stream has to say, and of its end. */
  opened(socket: Socket | undefined): void;
  /** Time has passed: whether the connection, if there is one, is to be opened again, for nothing comes by it. */
  tick(now: number): boolean;
  readonly queue: NewestQueue<T>;
}

/** Anything that a client closes with itself. */
export interface Closes {
  close(): void;
}

/** Ends a connection that is open and brings nothing: it may have broken unseen. */
class SilentConnection extends LinkDownError {}

/** A stream that is read with `for await`; leaving the loop closes it. */
abstract class Stream<T> implements AsyncIterableIterator<T> {
  readonly #transport: Transport;
  readonly #retries: Retries;
  readonly #stop = new AbortController();
  readonly #onEnd: (stream: Closes) => void;
  #running: Promise<void> | undefined;
  /** Ends the connection that is open. */
  #reopen: () => void = () => undefined;

  protected constructor(transport: Transport, retries: Retries, onEnd: (stream: Closes) => void) {
    this.#transport = transport;
    this.#retries = retries;
    this.#onEnd = onEnd;
  }

  protected abstract readonly reader: Reader<T>;

  /** The next item. Fails once with the reason, if there is one, why nothing follows. */
  next(): Promise<IteratorResult<T, undefined>> {
    this.#running ??= this.#stop.signal.aborted ? Promise.resolve() : this.#run();
    return this.reader.queue.next();
  }

  /** Ends the stream, as leaving the loop does. */
  return(): Promise<IteratorResult<T, undefined>> {
    this.close();
    return Promise.resolve({ done: true, value: undefined });
  }

  /** Ends the stream; an iteration that waits ends. Idempotent. */
  close(): void {
    this.#stop.abort(new LinkDownError("the stream is closed", "sdk.closed"));
    this.reader.queue.clear();
    this.#onEnd(this);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async #run(): Promise<void> {
    let fail: (error: unknown) => void = () => undefined;
    const failed = new Promise<never>((_, reject) => (fail = reject));
    const clock = setInterval(() => {
      try {
        if (this.reader.tick(performance.now())) this.#reopen();
      } catch (error) {
        fail(error);
      }
    }, LOOK_EVERY_MS);
    try {
      await Promise.race([this.#keep(), failed]);
      this.reader.queue.end();
    } catch (error) {
      this.reader.queue.end(error);
      this.#stop.abort(error);
    } finally {
      clearInterval(clock);
    }
    this.#onEnd(this);
  }

  /** Opens connection after connection until the stream is complete or closed; fails with the reason why there is none. */
  async #keep(): Promise<void> {
    const { signal } = this.#stop;
    const { max } = this.#retries;
    let tries = 0;
    let wasOpen = false;
    let isBroken = false;
    const isThere = (messages: number): void => {
      // The first message may come from a node that cannot serve: the second one begins the count from zero.
      if (messages > 1) tries = 0;
      if (messages === 1 && isBroken) {
        isBroken = false;
        this.reader.back();
      }
      wasOpen = true;
    };
    for (;;) {
      const failure = await this.#connection(isThere).catch((error: unknown) => error);
      if (signal.aborted || this.reader.isComplete) return;
      if (!(failure instanceof TidegateError)) throw failure;
      // One that was only silent is broken if no other can be opened.
      if (failure instanceof SilentConnection) continue;
      const isAway = failure instanceof LinkDownError || failure instanceof LimitReachedError;
      // A node that has just started may not have met its cameras yet.
      if (!isAway && !(wasOpen && isBroken && AWAY.has(failure.code))) throw failure;
      if (tries >= max) {
        if (max === 0) throw failure;
        const text = `the connection broke and ${max} further tries are used up: ${failure.message}`;
        throw new LinkDownError(text, failure.code, { cause: failure });
      }
      if (!isBroken) {
        isBroken = true;
        this.reader.broken(failure);
      }
      const asked = failure instanceof LimitReachedError ? (failure.retryAfterMs ?? 0) : 0;
      await pause(Math.max(asked, waitMs(this.#retries, tries)), signal);
      if (signal.aborted) return;
      tries++;
    }
  }

  /** Opens the WebSocket and reads it to its end: the reason why it ended. `isThere` is called at each message with their number. */
  async #connection(isThere: (messages: number) => void): Promise<unknown> {
    const { reader } = this;
    const { signal } = this.#stop;
    let messages = 0;
    let over: (error: unknown) => void = () => undefined;
    const ended = new Promise<unknown>((resolve) => (over = resolve));
    const handle = (message: () => void): void => {
      try {
        isThere(++messages);
        message();
        if (reader.isComplete) over(undefined);
      } catch (error) {
        over(error);
      }
    };
    const listener = {
      text: (text: string) => handle(() => reader.text(fields(parse(text), "a message"))),
      bytes: (bytes: Uint8Array) => handle(() => reader.bytes(bytes)),
      closed: over,
    };
    let socket: Socket;
    try {
      socket = await this.#transport.open(reader.path(), listener, signal);
    } catch (error) {
      if (!this.#transport.tellsWhy && error instanceof LinkDownError) await reader.explain();
      throw error;
    }
    const abort = (): void => over(signal.reason);
    this.#reopen = () => over(new SilentConnection("nothing came by the connection"));
    signal.addEventListener("abort", abort);
    if (signal.aborted) abort();
    try {
      reader.opened(socket);
      return await ended;
    } finally {
      this.#reopen = () => undefined;
      reader.opened(undefined);
      signal.removeEventListener("abort", abort);
      socket.close();
    }
  }
}

/** A program that asked for it is thrown a silence of so many seconds. */
const THROWN_AFTER_S = 10;

const AWAY = new Set(["frames.camera.unknown", "frames.camera.offline"]);

/** How frames are asked for. */
export interface FrameOptions {
  /** Longest time from capture to the node's handing over, 1 to 60000 ms; 100 by default. */
  readonly latencyMs?: number;
  /** Lowest F1 of the detector on the delivered frame against the original, 0 to 1; 0.95 by default. */
  readonly accuracy?: number;
  /** Most frames per second that are wanted, 0.01 to 1000; 0, or none, for as many as the camera makes. */
  readonly fps?: number;
  /** Frames that wait for a slow reader, 1 to 64; the oldest goes when there are more. 1 by default. */
  readonly queue?: number;
  /** `wait` until the camera or the node is back, or `throw`; that counts for 10 s without a picture, too. */
  readonly whenOffline?: "wait" | "throw";
  /** Called with each event that is no frame, as it comes. */
  readonly onEvent?: (event: Notice) => void;
}

/** Checks what frames are asked with. */
export function boundsOf(options: FrameOptions): Bounds {
  const { latencyMs = 100, accuracy = 0.95, fps, queue = 1 } = options;
  const invalid = (text: string): InvalidRequestError => new InvalidRequestError(text, "frames.bound.invalid");
  if (!(latencyMs >= 1 && latencyMs <= 60_000)) throw invalid(`a latency of ${latencyMs} ms is out of range: 1 to 60000 ms`);
  if (!(accuracy >= 0 && accuracy <= 1)) throw invalid(`an accuracy of ${accuracy} is out of range: 0 to 1`);
  const isRate = fps === undefined || fps === 0 || (fps >= 0.01 && fps <= 1000);
  if (!isRate) throw invalid(`${fps} frames per second are out of range: 0.01 to 1000, or 0 for as many as the camera makes`);
  checkQueue(queue);
  return { latencyMs, accuracy };
}

function checkQueue(queue: number): void {
  if (Number.isInteger(queue) && queue >= 1 && queue <= 64) return;
  throw new InvalidRequestError(`a queue of ${queue} is out of range: 1 to 64`, "config.invalid");
}

/** Changes to the bounds of a stream; what is left out stays. */
export interface Changes {
  readonly latencyMs?: number;
  readonly accuracy?: number;
  /** 0 for as many as the camera makes. */
  readonly fps?: number;
}

class FrameReader<T extends Event> implements Reader<T> {
  isComplete = false;
  readonly queue: NewestQueue<T>;
  readonly explain: () => Promise<void>;
  readonly #camera: string;
  readonly #take: (event: Event) => void;
  #wanted: FrameOptions;
  /** Those of the connection that was last begun. */
  #asked: FrameOptions | undefined;
  #socket: Socket | undefined;
  /** As the node says them. */
  #bounds: Bounds;
  #head: Fields | undefined;
  #last: { readonly epoch: bigint; readonly atNs: bigint } | undefined;
  readonly #silence = new Silence(performance.now());
  /** Whether the program was told why no picture comes. */
  #isTold = false;
  #openedAt = 0;
  #patienceMs: number = REOPEN_AFTER_MS[0];

  constructor(camera: string, options: FrameOptions, explain: () => Promise<void>, take: (event: Event) => void) {
    this.#camera = camera;
    this.#bounds = boundsOf(options);
    this.#wanted = options;
    this.#take = take;
    this.explain = explain;
    this.queue = new NewestQueue(options.queue ?? 1);
  }

  get bounds(): Bounds {
    return this.#bounds;
  }

  path(): string {
    this.#asked = this.#wanted;
    // The clock begins with the first connection.
    if (this.#openedAt === 0) this.#silence.begin(performance.now());
    this.#openedAt = performance.now();
    const { latencyMs, accuracy } = boundsOf(this.#wanted);
    const query = new URLSearchParams({ latency_ms: `${latencyMs}`, accuracy: `${accuracy}` });
    if (this.#wanted.fps !== undefined) query.set("fps", `${this.#wanted.fps}`);
    return `/cameras/${encodeURIComponent(this.#camera)}/frames?${query}`;
  }

  opened(socket: Socket | undefined): void {
    this.#socket = socket;
    // The picture of a frame does not come by another connection.
    this.#head = undefined;
    // They may have changed while the connection was being made.
    if (socket === undefined || this.#asked === this.#wanted) return;
    const { latencyMs, accuracy } = boundsOf(this.#wanted);
    this.#tell({ latencyMs, accuracy, ...(this.#wanted.fps !== undefined && { fps: this.#wanted.fps }) });
  }

  tick(now: number): boolean {
    if (this.#isTold || this.isComplete) return false;
    const seconds = this.#silence.seconds(now, this.#wanted.fps);
    if (seconds === 0) return false;
    this.#take({ type: "silent", seconds, sentence: noPicture(seconds) });
    if (now - this.#openedAt < this.#patienceMs) return false;
    this.#patienceMs = Math.min(this.#patienceMs * 2, REOPEN_AFTER_MS[1]);
    return true;
  }

  #heard(): void {
    this.#isTold = false;
    this.#patienceMs = REOPEN_AFTER_MS[0];
    this.#silence.heard(performance.now());
  }

  update(changes: Changes): void {
    const wanted = { ...this.#wanted, ...changes };
    boundsOf(wanted);
    this.#wanted = wanted;
    this.#tell(changes);
  }

  #tell({ latencyMs: latency_ms, accuracy, fps }: Changes): void {
    this.#socket?.sendText(JSON.stringify({ type: "update", latency_ms, accuracy, fps }));
  }

  text(message: Fields): void {
    if (this.#head !== undefined) throw malformed("a frame without its picture");
    if (message["type"] === "frame") {
      this.#head = message;
      return;
    }
    if (message["type"] === "error") throw ofError(message);
    if (message["type"] === "started" || message["type"] === "updated") this.#bounds = boundsTold(message, this.#bounds);
    const notice = noticeOf(message, this.#bounds);
    if (notice === undefined) return;
    // A node that stops may start again.
    if (notice.type === "ended" && notice.reason === "shutdown") throw new LinkDownError(notice.sentence);
    if (notice.type === "ended") this.isComplete = true;
    if (notice.type === "unchanged") this.#heard();
    else if (notice.type === "camera-offline" || notice.type === "no-frames") this.#isTold = true;
    else if (notice.type === "camera-online") this.#hopes();
    this.#take(notice);
  }

  bytes(jpeg: Uint8Array): void {
    if (this.#head === undefined) throw malformed("a picture without its frame");
    const head = this.#head;
    this.#head = undefined;
    const frame = new Frame(this.#camera, head, jpeg, this.#bounds);
    // Times of a camera that has restarted cannot be compared with those before.
    const isOld = this.#last !== undefined && this.#last.epoch === frame.epoch && frame.capturedAtNs <= this.#last.atNs;
    if (isOld) return;
    this.#last = { epoch: frame.epoch, atNs: frame.capturedAtNs };
    this.#heard();
    this.#take(frame);
  }

  /** Pictures are to come from now on. */
  #hopes(): void {
    this.#isTold = false;
    this.#silence.begin(performance.now());
  }

  broken(error: TidegateError): void {
    this.#head = undefined;
    this.#isTold = true;
    this.#take({ type: "camera-offline", sentence: `the connection to the node broke (${error.message}); trying again`, node: true });
  }

  back(): void {
    this.#head = undefined;
    this.#hopes();
    this.#take({ type: "camera-online" });
  }
}

/** All that one subscription tells, in order. Made by `Client.events`. */
export class EventStream extends Stream<Event> {
  protected readonly reader: FrameReader<Event>;

  /** Made by `Client.events`. */
  constructor(
    transport: Transport,
    retries: Retries,
    camera: string,
    options: FrameOptions,
    explain: () => Promise<void>,
    onEnd: (stream: Closes) => void,
  ) {
    super(transport, retries, onEnd);
    const reader = new FrameReader<Event>(camera, options, explain, (event) => reader.queue.push(event, event.type === "frame"));
    this.reader = reader;
  }

  /** The bounds that hold now. */
  get bounds(): Bounds {
    return this.reader.bounds;
  }

  /** Asks for other bounds, which hold from the event `updated` on. Fails with `InvalidRequestError`. */
  update(changes: Changes): void {
    this.reader.update(changes);
  }

  /** Frames that this program was too slow to read. */
  get skipped(): number {
    return this.reader.queue.skipped;
  }
}

/** The frames of one subscription. Made by `Client.frames`. */
export class FrameStream extends Stream<Frame> {
  protected readonly reader: FrameReader<Frame>;
  readonly #options: FrameOptions;
  #infeasible: Infeasible | undefined;
  #offline: CameraOffline | NoFrames | Silent | undefined;
  #missed = 0;

  /** Made by `Client.frames`. */
  constructor(
    transport: Transport,
    retries: Retries,
    camera: string,
    options: FrameOptions,
    explain: () => Promise<void>,
    onEnd: (stream: Closes) => void,
  ) {
    super(transport, retries, onEnd);
    this.#options = options;
    const reader = new FrameReader<Frame>(camera, options, explain, (event) => {
      if (event.type === "frame") {
        if (!event.replayed) this.#offline = undefined;
        reader.queue.push(event, true);
      } else this.#notice(event);
    });
    this.reader = reader;
  }

  /** The bounds that hold now. */
  get bounds(): Bounds {
    return this.reader.bounds;
  }

  /** Asks for other bounds, which hold from the event `updated` on. Fails with `InvalidRequestError`. */
  update(changes: Changes): void {
    this.reader.update(changes);
  }

  /** Set while both bounds cannot be kept; it says which could be. */
  get infeasible(): Infeasible | undefined {
    return this.#infeasible;
  }

  /** Set while the camera or the node is away, the camera gives no pictures, or none comes and nobody says why. */
  get offline(): CameraOffline | NoFrames | Silent | undefined {
    return this.#offline;
  }

  /** Captured frames that were not delivered, as far as the node counted them. */
  get missed(): number {
    return this.#missed;
  }

  /** Frames that came and that this program was too slow to read. */
  get skipped(): number {
    return this.reader.queue.skipped;
  }

  #notice(event: Notice): void {
    if (event.type === "infeasible") this.#infeasible = event;
    else if (event.type === "feasible") this.#infeasible = undefined;
    else if (event.type === "camera-offline" || event.type === "no-frames" || event.type === "silent") this.#offline = event;
    else if (event.type === "unchanged" && this.#offline?.type === "silent") this.#offline = undefined;
    else if (event.type === "camera-online") this.#offline = undefined;
    else if (event.type === "missed") this.#missed += event.count;
    this.#options.onEvent?.(event);
    const isSoon = event.type === "silent" && event.seconds < THROWN_AFTER_S;
    if (this.#offline === event && !isSoon && this.#options.whenOffline === "throw") {
      throw new CameraOfflineError(this.#offline.sentence, "frames.camera.offline");
    }
  }
}

/** How live detections are asked for. */
export interface DetectionOptions {
  /** Those of one camera; of all where it is missing. */
  readonly camera?: string;
  /** Detections that wait for a slow reader, 1 to 64; the oldest goes when there are more. 16 by default. */
  readonly queue?: number;
}

/** The findings of the node's own detectors, as they come. Made by `Client.detections`. */
export class DetectionStream extends Stream<LiveDetection> {
  protected readonly reader: Reader<LiveDetection>;

  /** Made by `Client.detections`. */
  constructor(
    transport: Transport,
    retries: Retries,
    options: DetectionOptions,
    explain: () => Promise<void>,
    onEnd: (stream: Closes) => void,
  ) {
    super(transport, retries, onEnd);
    const { camera, queue: size = 16 } = options;
    checkQueue(size);
    const queue = new NewestQueue<LiveDetection>(size);
    this.reader = {
      path: () => (camera === undefined ? "/v1/detections" : `/v1/detections?${new URLSearchParams({ camera })}`),
      opened: () => undefined,
      queue,
      isComplete: false,
      explain,
      text: (message) => {
        const detection = liveDetectionOf(message);
        if (detection !== undefined) queue.push(detection, true);
      },
      bytes: () => {
        throw malformed("bytes among detections");
      },
      broken: () => undefined,
      back: () => undefined,
      // Nothing may be detected for long.
      tick: () => false,
    };
  }

  /** Detections that this program was too slow to read. */
  get skipped(): number {
    return this.reader.queue.skipped;
  }
}
