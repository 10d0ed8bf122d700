/**
 * Cameras of other nodes: a request about one goes to the node that serves it. For Node.js: a browser is let in by a node's own pages alone.
 *
 *     request ──▶ the node that is remembered for the camera ── not there ──┐
 *        └──────▶ the node of the client ◀──────────────────────────────────┘
 *                      │ elsewhere            │ elsewhere
 *                      └──▶ the named node ───┴──▶ the named node ── elsewhere ──▶ fails
 *
 * Always true: a token or a password goes to another node over TLS alone, and only where its certificate is one that the first connection
 * would take: of the same authorities, for `serverName` or else for the host of the address. A node that answers by another name than the
 * one that was named serves no request. A request makes two steps at most.
 */

import { CameraElsewhereError, LinkDownError, ofCode, TidegateError } from "./errors.js";
import { fields, parse, string } from "./json.js";
import { failureOf, type Answer, type Listener, type Request, type Socket, type Transport } from "./transport.js";

/** One step leads to the node; the second is for a camera that has just moved and of which the first node has not heard. */
const STEPS_MAX = 2;
/** Cameras whose nodes are remembered; the one that was asked for least recently is forgotten. */
export const CAMERAS_MAX = 256;
/** Addresses of a node that are tried. */
const ADDRESSES_MAX = 8;

/** The node is not reached, or is no longer who it was. */
const AWAY = new Set(["link.down", "auth.identity.refused", "auth.identity.revoked"]);
/** The node is there, and the camera may be at another by now. */
const MISSING = new Set(["frames.camera.elsewhere", "frames.camera.unknown", "frames.camera.offline"]);

/** A node that serves cameras which the client's own does not. */
interface Reached {
  readonly address: string;
  readonly name: string;
  readonly transport: Transport;
}

/** The way to one node, and from there to those that serve cameras which it does not. */
export class FollowingTransport implements Transport {
  readonly tellsWhy: boolean;
  readonly #own: Transport;
  readonly #host: string;
  readonly #dial: (address: string) => Transport;
  /** The camera that was asked for last stands last. Cameras of one node share its connections. */
  readonly #known = new Map<string, Reached>();
  #isClosed = false;

  /** `host` names the client's own node in messages; `dial` makes the way to an address `host:port`, over TLS and with the same credentials. */
  constructor(own: Transport, host: string, dial: (address: string) => Transport) {
    this.#own = own;
    this.#host = host;
    this.#dial = dial;
    this.tellsWhy = own.tellsWhy;
  }

  request(request: Request): Promise<Answer> {
    const camera = cameraOf(request.path);
    if (camera === undefined) return this.#own.request(request);
    return this.#call(camera, async (at) => {
      const answer = await at.request(request);
      const failure = failureOf(answer, `camera ${camera}`);
      if (failure !== undefined) throw failure;
      return answer;
    });
  }

  open(path: string, listener: Listener, signal: AbortSignal): Promise<Socket> {
    const camera = cameraOf(path);
    if (camera === undefined) return this.#own.open(path, listener, signal);
    return this.#call(camera, (at) => at.open(path, listener, signal));
  }

  close(): void {
    this.#isClosed = true;
    this.#own.close();
    for (const { transport } of this.#known.values()) transport.close();
    this.#known.clear();
  }

  /** Asks the node that serves a camera. */
  async #call<T>(camera: string, ask: (at: Transport) => Promise<T>): Promise<T> {
    const known = this.#recall(camera);
    if (known !== undefined) {
      try {
        return await ask(known.transport);
      } catch (error) {
        if (isOne(error, AWAY)) this.#lose(known);
        else if (!isOne(error, MISSING)) throw error;
      }
    }
    let at: Reached | undefined;
    let place: CameraElsewhereError | undefined;
    for (let steps = 1; ; steps++) {
      let next: CameraElsewhereError;
      try {
        const answer = await ask(at?.transport ?? this.#own);
        this.#remember(camera, at);
        return answer;
      } catch (error) {
        if (error instanceof CameraElsewhereError && error.node !== undefined && error.addresses.length > 0) next = error;
        else if (at !== undefined && place !== undefined && isOne(error, AWAY)) {
          this.#lose(at);
          throw unreached(this.#host, camera, place, error);
        } else {
          this.#remember(camera, at);
          throw error;
        }
      }
      const from = at?.name ?? this.#host;
      if (steps > STEPS_MAX) {
        this.#known.delete(camera);
        const text = `camera ${camera} was not found from ${this.#host} in ${STEPS_MAX} steps: node ${from} says that it is at node ${next.node}`;
        throw new CameraElsewhereError(text, next.code, next.node, next.addresses);
      }
      at = await this.#reach(from, camera, next);
      place = next;
    }
  }

  async #reach(from: string, camera: string, place: CameraElsewhereError): Promise<Reached> {
    const addresses = place.addresses.slice(0, ADDRESSES_MAX);
    for (const held of this.#known.values()) {
      if (held.name === place.node && addresses.includes(held.address)) return held;
    }
    let last: TidegateError = new LinkDownError("it has no address");
    for (const address of addresses) {
      let transport: Transport | undefined;
      try {
        transport = this.#dial(address);
        const name = await nameOf(transport);
        // The address is one of a private network, of which there are many.
        if (name !== place.node) throw new LinkDownError(`node ${name} answers at ${address}`);
        if (this.#isClosed) throw new LinkDownError("the client is closed", "sdk.closed");
        return { address, name, transport };
      } catch (error) {
        transport?.close();
        if (!(error instanceof TidegateError) || error.code === "sdk.closed") throw error;
        // A refusal says more than an address that leads nowhere from here.
        if (last.code === "link.down") last = error;
      }
    }
    throw unreached(from, camera, place, last);
  }

  #recall(camera: string): Reached | undefined {
    const known = this.#known.get(camera);
    if (known !== undefined) this.#remember(camera, known);
    return known;
  }

  /** A camera is at that node, or at the client's own. */
  #remember(camera: string, at: Reached | undefined): void {
    this.#known.delete(camera);
    if (at === undefined || this.#isClosed) return;
    this.#known.set(camera, at);
    // Connections of a node that is forgotten end by themselves once they are idle: others may be using them.
    if (this.#known.size > CAMERAS_MAX) this.#known.delete(this.#known.keys().next().value as string);
  }

  /** Forgets a node, for all cameras. */
  #lose(at: Reached): void {
    for (const [camera, held] of this.#known) if (held === at) this.#known.delete(camera);
    at.transport.close();
  }
}

/** The camera that a path is about. */
function cameraOf(path: string): string | undefined {
  const part = /^\/cameras\/([^/?]+)\//.exec(path)?.[1];
  return part === undefined ? undefined : decodeURIComponent(part);
}

async function nameOf(transport: Transport): Promise<string> {
  const answer = await transport.request({ method: "GET", path: "/v1/me" });
  const failure = failureOf(answer, "the caller");
  if (failure !== undefined) throw failure;
  return string(fields(parse(new TextDecoder().decode(answer.body)), "the caller")["node"]);
}

function isOne(error: unknown, codes: ReadonlySet<string>): error is TidegateError {
  return error instanceof TidegateError && codes.has(error.code);
}

function unreached(from: string, camera: string, place: CameraElsewhereError, error: TidegateError): TidegateError {
  const where = place.addresses.join(" or ");
  const text = `${from} says that camera ${camera} is at node ${place.node}, which is not reached at ${where}: ${error.message}`;
  return ofCode(AWAY.has(error.code) ? error.code : "link.down", text);
}
