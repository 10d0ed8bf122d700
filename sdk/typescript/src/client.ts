/** The client of a node: `connect`, and a call for each thing that a node does. */

import { detectionsOf, type Detections } from "./detections.js";
import { DetectorSocket, type DetectorOptions } from "./detector.js";
import { FollowingTransport } from "./elsewhere.js";
import { CameraUnknownError, InvalidRequestError, LinkDownError, ModelUnknownError, TidegateError } from "./errors.js";
import { camerasOf, dateOf, type Camera } from "./frames.js";
import { fields, items, nanos, parse, string } from "./json.js";
import { RETRIES, type Retries } from "./retries.js";
import { DetectionStream, EventStream, FrameStream, type Closes, type DetectionOptions, type FrameOptions } from "./streams.js";
import {
  addressOf,
  authorizationOf,
  BrowserTransport,
  failureOf,
  isLoopback,
  type Answer,
  type Bytes,
  type Credentials,
  type Request,
  type Transport,
} from "./transport.js";

/** How `connect` reaches a node. */
export interface ConnectOptions extends Credentials {
  /** How hard streams try to get a broken connection back; 20 tries in a row, about a minute and a half, by default. */
  readonly retries?: Partial<Retries>;
  /**
   * Whether `frames`, `events` and `snapshot` of a camera that another node of the fabric serves go there; true by default. The same proof is
   * shown to that node, over TLS alone, and only if its certificate is one that this connection would take: of the same authority, for
   * `serverName` or else for the host of its address. Otherwise the node that is connected relays them, as it does over `http://` and for a
   * browser, which a node lets in from its own pages alone.
   */
  readonly follow?: boolean;
}

/** The caller, as the node knows it. */
export interface Identity {
  readonly name: string;
  /** By what it is known, in the node's words, such as `user` or `token`. */
  readonly kind: string;
  /** When its credentials end; undefined if they do not. */
  readonly until: Date | undefined;
  /** Whether it may administer the node. */
  readonly admin: boolean;
  /** The node's name and version. */
  readonly node: string;
  readonly version: string;
}

/** An untouched frame, as the camera made it. */
export interface Snapshot {
  readonly camera: string;
  /** ns since the Unix epoch. */
  readonly capturedAtNs: bigint;
  /** The same as a date, cut to ms. */
  readonly capturedAt: Date;
  readonly jpeg: Uint8Array;
}

/**
 * Connects to a node.
 *
 * In a browser, a token, or a user and its password, are exchanged for a session, whose cookie the browser keeps; without them, the session
 * that it has is used. A node takes requests of its own pages alone. In Node.js each request carries the proof, or the connection carries a
 * certificate.
 *
 * @param url `https://HOST:PORT` of the node's API; port 7080 where none is named. `http://` is for proxies on the same machine.
 *
 * Fails with `InvalidRequestError` (an address or proof that cannot be used), `IdentityRefusedError`, `LinkDownError`.
 */
export async function connect(url: string, options: ConnectOptions = {}): Promise<Client> {
  const address = addressOf(url);
  const invalid = (text: string): InvalidRequestError => new InvalidRequestError(text, "config.invalid");
  const { token, user, password, cert, key } = options;
  if ([token, user, cert].filter((proof) => proof !== undefined).length > 1) {
    throw invalid("token, user and cert are three ways to say who calls: give one of them");
  }
  if ((user === undefined) !== (password === undefined)) throw invalid("a user and a password go together");
  if ((cert === undefined) !== (key === undefined)) throw invalid("a certificate and its key go together");
  if (user?.includes(":") === true) throw invalid(`"${user}" cannot be a user name here: it has a ":"`);
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) throw invalid("the token holds characters that no token has");
  if (address.protocol === "http:" && (token ?? password) !== undefined && !isLoopback(address)) {
    throw invalid(`a token or a password does not go to ${address.host} without TLS; https:// does`);
  }
  const { max = RETRIES.max, waitMs = RETRIES.waitMs, waitMaxMs = RETRIES.waitMaxMs } = options.retries ?? {};
  if (!(max >= 0 && waitMs >= 0 && waitMaxMs >= waitMs)) throw invalid("retries has a number below 0, or waitMaxMs below waitMs");
  const transport = await transportOf(address, options);
  const client = new Client(address, transport, { max, waitMs, waitMaxMs });
  try {
    if ((token ?? user) !== undefined && !isNode()) await client.login(options);
    else await client.me();
    return client;
  } catch (error) {
    client.close();
    throw error;
  }
}

function isNode(): boolean {
  // Not a type of the platform: a browser has no `process`.
  const { process } = globalThis as { readonly process?: { readonly versions?: { readonly node?: string } } };
  return process?.versions?.node !== undefined && !("document" in globalThis);
}

async function transportOf(address: URL, options: ConnectOptions): Promise<Transport> {
  if (!isNode()) return new BrowserTransport(address, options);
  const { NodeTransport } = await import("./transport_node.js");
  if (options.follow === false || address.protocol !== "https:") return new NodeTransport(address, options);
  const own = new NodeTransport(address, options, false);
  return new FollowingTransport(own, address.host, (other) => new NodeTransport(addressOf(`https://${other}`), options, false));
}

/** One node, and the streams that are open to it. Made by `connect`. */
export class Client {
  readonly #address: URL;
  readonly #transport: Transport;
  readonly #retries: Retries;
  readonly #open = new Set<Closes>();
  #isClosed = false;

  /** Made by `connect`. */
  constructor(address: URL, transport: Transport, retries: Retries) {
    this.#address = address;
    this.#transport = transport;
    this.#retries = retries;
  }

  /** The caller, as the node knows it. */
  async me(): Promise<Identity> {
    const told = fields(await this.#json({ method: "GET", path: "/v1/me" }, "the caller"), "the caller");
    const until = nanos(told["until"]);
    return {
      name: string(told["name"]),
      kind: string(told["kind"]),
      until: until === undefined ? undefined : dateOf(until),
      admin: told["admin"] === true,
      node: string(told["node"]),
      version: string(told["version"]),
    };
  }

  /** Every camera of the node that the caller may see, in order of their names; none of other nodes. */
  async cameras(): Promise<Camera[]> {
    return camerasOf(await this.#json({ method: "GET", path: "/cameras" }, "the list of cameras"));
  }

  /**
   * The untouched frame of a camera: its newest, or that of `atNs`, which a frame or a detection names.
   *
   * Fails with `CameraUnknownError`, `FrameMissingError` (the log no longer has it), `CameraOfflineError`, `ActionDeniedError`.
   */
  async snapshot(camera: string, atNs?: bigint, signal?: AbortSignal): Promise<Snapshot> {
    const query = atNs === undefined ? "" : `?at=${atNs}`;
    const path = `/cameras/${encodeURIComponent(camera)}/snapshot.jpg${query}`;
    const answer = await this.#ask({ method: "GET", path, ...(signal && { signal }) }, `the picture of ${camera}`);
    const capturedAtNs = nanos(answer.header("tidegate-captured-at")) ?? atNs;
    if (capturedAtNs === undefined) throw new TidegateError("the node sent a picture without its time", "link.protocol");
    return { camera, capturedAtNs, capturedAt: dateOf(capturedAtNs), jpeg: answer.body };
  }

  /**
   * Frames of one camera that keep both bounds, for `for await`; leaving the loop ends the subscription.
   *
   * The stream comes back after a broken connection, and no frame comes twice. A program that is slow to read gets the newest frames: the
   * oldest that wait are dropped and counted in `skipped`.
   *
   * Fails at once with `InvalidRequestError`; while it is read with `CameraUnknownError`, `ActionDeniedError`, `IdentityRefusedError`,
   * `LinkDownError`, and with `CameraOfflineError` where `whenOffline` is `throw`.
   */
  frames(camera: string, options: FrameOptions = {}): FrameStream {
    this.#checkOpen();
    return this.#hold(new FrameStream(this.#transport, this.#retries, camera, options, () => this.#explainCamera(camera), this.#drop));
  }

  /** Frames and all else that a subscription tells, in order. Options and errors as of `frames`. */
  events(camera: string, options: FrameOptions = {}): EventStream {
    this.#checkOpen();
    return this.#hold(new EventStream(this.#transport, this.#retries, camera, options, () => this.#explainCamera(camera), this.#drop));
  }

  /** The findings of the node's own detectors, as they come, for `for await`. */
  detections(options: DetectionOptions = {}): DetectionStream {
    this.#checkOpen();
    return this.#hold(new DetectionStream(this.#transport, this.#retries, options, () => this.#explain(), this.#drop));
  }

  /**
   * The findings of a model in a JPEG or PNG image, by one request over a connection that is kept. Many images go faster by `detector`.
   *
   * @param model `face`, `person`, or a name of `models`.
   *
   * Fails with `ModelUnknownError`, `ImageRefusedError`, `LimitReachedError` (the queue of the workers is full, see `retryAfterMs`),
   * `DetectorFailedError`, `ActionDeniedError`.
   */
  async detect(image: Bytes, model: string, signal?: AbortSignal): Promise<Detections> {
    const path = `/v1/detect/${encodeURIComponent(model)}`;
    const type = image instanceof Blob && image.type !== "" ? image.type : typeOf(image);
    return detectionsOf(await this.#json({ method: "POST", path, body: image, type, ...(signal && { signal }) }, `the model ${model}`));
  }

  /** A connection to one model that stays, with many images under way at once. */
  detector(model: string, options: DetectorOptions = {}): DetectorSocket {
    this.#checkOpen();
    return this.#hold(new DetectorSocket(this.#transport, this.#retries, model, options, () => this.#explainModel(model), this.#drop));
  }

  /** Names of the models that there are. */
  async models(): Promise<string[]> {
    const told = fields(await this.#json({ method: "GET", path: "/v1/models" }, "the list of models"), "a list of models");
    return items(told["models"], "a list of models").map((model) => string(fields(model, "a model")["name"]));
  }

  /** Exchanges a user and its password, or a token, for a session whose cookie the browser keeps. `connect` does it where it has to. */
  async login(credentials: Credentials): Promise<void> {
    const authorization = authorizationOf(credentials);
    if (authorization === undefined) throw new InvalidRequestError("a session needs a token, or a user and a password", "config.invalid");
    await this.#ask({ method: "POST", path: "/v1/login", authorization }, "signing in");
  }

  /** Ends the session of this browser. */
  async logout(): Promise<void> {
    await this.#ask({ method: "POST", path: "/v1/logout" }, "signing out");
  }

  /** Ends all streams and connections. Idempotent. */
  close(): void {
    this.#isClosed = true;
    for (const each of [...this.#open]) each.close();
    this.#transport.close();
  }

  /** For messages. */
  toString(): string {
    return `Client of ${this.#address.host}`;
  }

  #hold<T extends Closes>(stream: T): T {
    this.#open.add(stream);
    return stream;
  }

  readonly #drop = (stream: Closes): void => {
    this.#open.delete(stream);
  };

  #checkOpen(): void {
    if (this.#isClosed) throw new LinkDownError("the client is closed", "sdk.closed");
  }

  async #ask(request: Request, what: string): Promise<Answer> {
    this.#checkOpen();
    const answer = await this.#transport.request(request);
    const failure = failureOf(answer, what);
    if (failure !== undefined) throw failure;
    return answer;
  }

  async #json(request: Request, what: string): Promise<unknown> {
    return parse(new TextDecoder().decode((await this.#ask(request, what)).body));
  }

  // A browser does not say why a WebSocket was refused: these ask by a request of HTTP.

  async #explain(): Promise<void> {
    await this.me();
  }

  async #explainCamera(camera: string): Promise<void> {
    const names = (await this.cameras()).map((each) => each.name);
    if (names.includes(camera)) return;
    throw new CameraUnknownError(`no camera is called ${camera}; there are: ${names.join(", ") || "none"}`, "frames.camera.unknown");
  }

  async #explainModel(model: string): Promise<void> {
    const names = await this.models();
    if (names.includes(model)) return;
    throw new ModelUnknownError(`no model is called ${model}; there are: ${names.join(", ") || "none"}`, "vision.model.unknown");
  }
}

/** JPEG unless the bytes begin as PNG does. */
function typeOf(image: Bytes): string {
  if (image instanceof Blob) return "image/jpeg";
  const bytes = image instanceof Uint8Array ? image : new Uint8Array(image);
  return bytes[0] === 0x89 && bytes[1] === 0x50 ? "image/png" : "image/jpeg";
}

