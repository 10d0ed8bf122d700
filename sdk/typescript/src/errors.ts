/**
 * Why a call failed: one class for each way out, with the node's stable code.
 *
 *     TidegateError
 *     ├── InvalidRequestError    the request can never work: fix it
 *     ├── CameraUnknownError     no camera of that name
 *     ├── CameraOfflineError     the camera is not reached now
 *     ├── CameraElsewhereError   another node serves the camera
 *     ├── FrameMissingError      the log has no such frame, or no longer
 *     ├── ModelUnknownError      no model of that name
 *     ├── ImageRefusedError      an image that no detector can use
 *     ├── DetectorFailedError    the detector does not answer, or its answer is none
 *     ├── IdentityRefusedError   this side or the other is not who it must be
 *     ├── ActionDeniedError      the caller may not
 *     ├── LimitReachedError      full now: later
 *     └── LinkDownError          the node is not reached
 */

/** A failure: `code` is stable and for programs, the text is for people and may change. */
export class TidegateError extends Error {
  /** One of the node's codes, such as `frames.camera.unknown`, or `sdk.…` for a failure that this package found itself. */
  readonly code: string;

  constructor(message: string, code = "internal", options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** The request can never work: a bound out of its range, an address that is none. */
export class InvalidRequestError extends TidegateError {}

/** The node knows no camera of that name. */
export class CameraUnknownError extends TidegateError {}

/** The camera is known and not reached now. */
export class CameraOfflineError extends TidegateError {}

/** Another node serves the camera: connect to that one. A client that follows, see `ConnectOptions.follow`, has tried. */
export class CameraElsewhereError extends TidegateError {
  /** The node's name; undefined where it is not said. */
  readonly node: string | undefined;
  /** Addresses of its API, `host:port`, the best first. */
  readonly addresses: readonly string[];

  constructor(message: string, code = "frames.camera.elsewhere", node?: string, addresses: readonly string[] = []) {
    super(message, code);
    this.node = node;
    this.addresses = addresses;
  }
}

/** The camera's log no longer has the frame, or never had it. */
export class FrameMissingError extends TidegateError {}

/** The node has no model of that name; the text names those that there are. */
export class ModelUnknownError extends TidegateError {}

/** The image is of another type than JPEG or PNG, too large, or damaged. */
export class ImageRefusedError extends TidegateError {}

/** The detector does not start, does not answer in time, or gives an answer that is none; the same call may succeed later. */
export class DetectorFailedError extends TidegateError {}

/** A certificate, token or password was not accepted, by the node or by this side. */
export class IdentityRefusedError extends TidegateError {}

/** The node knows who calls, and its rules do not allow it. */
export class ActionDeniedError extends TidegateError {}

/** The node, or a queue of this package, takes no more now; the same call may succeed later. */
export class LimitReachedError extends TidegateError {
  /** When the node expects to take more, in ms from now; undefined where it does not say. */
  readonly retryAfterMs: number | undefined;

  constructor(message: string, code = "limit.reached", retryAfterMs?: number) {
    super(message, code);
    this.retryAfterMs = retryAfterMs;
  }
}

/** The node is not reached, or the connection broke and the tries are used up. */
export class LinkDownError extends TidegateError {
  constructor(message: string, code = "link.down", options?: ErrorOptions) {
    super(message, code, options);
  }
}

type Kind = new (message: string, code: string) => TidegateError;

const BY_CODE: { readonly [code: string]: Kind } = {
  "frames.bound.invalid": InvalidRequestError,
  "frames.camera.unknown": CameraUnknownError,
  "frames.camera.offline": CameraOfflineError,
  "frames.camera.elsewhere": CameraElsewhereError,
  "frames.frame.missing": FrameMissingError,
  "frames.range.invalid": InvalidRequestError,
  "frames.table.invalid": InvalidRequestError,
  "frames.table.missing": InvalidRequestError,
  "auth.identity.refused": IdentityRefusedError,
  "auth.identity.revoked": IdentityRefusedError,
  "auth.action.denied": ActionDeniedError,
  "config.invalid": InvalidRequestError,
  "storage.full": LimitReachedError,
  "limit.reached": LimitReachedError,
  "link.down": LinkDownError,
  "request.invalid": InvalidRequestError,
  "request.path.unknown": InvalidRequestError,
  "vision.detector.failed": DetectorFailedError,
  "vision.detector.unavailable": DetectorFailedError,
  "vision.image.invalid": ImageRefusedError,
  "vision.image.type": ImageRefusedError,
  "vision.image.too_large": ImageRefusedError,
  "vision.model.unknown": ModelUnknownError,
  "vision.model.refused": InvalidRequestError,
  "vision.request.invalid": InvalidRequestError,
};

// Where no node gave a code, as when a proxy answers, the status decides.
const BY_STATUS: { readonly [status: number]: readonly [Kind, string] } = {
  400: [InvalidRequestError, "request.invalid"],
  401: [IdentityRefusedError, "auth.identity.refused"],
  403: [ActionDeniedError, "auth.action.denied"],
  413: [ImageRefusedError, "sdk.status.413"],
  415: [ImageRefusedError, "sdk.status.415"],
  422: [ImageRefusedError, "sdk.status.422"],
  429: [LimitReachedError, "limit.reached"],
  502: [LinkDownError, "link.down"],
  503: [LinkDownError, "link.down"],
  504: [LinkDownError, "link.down"],
};

/** The failure that an answer of HTTP stands for. `code` and `text` are the node's own, where it gave them. */
export function ofAnswer(status: number, code: string | undefined, text: string, retryAfterMs?: number): TidegateError {
  if (code === "limit.reached" || (code === undefined && status === 429)) {
    return new LimitReachedError(text, "limit.reached", retryAfterMs);
  }
  const byCode = code === undefined ? undefined : BY_CODE[code];
  if (code !== undefined && byCode !== undefined) return new byCode(text, code);
  const byStatus = BY_STATUS[status];
  if (byStatus === undefined) return new TidegateError(text, code ?? `sdk.status.${status}`);
  return new byStatus[0](text, code ?? byStatus[1]);
}

/** The failure that a code of the node stands for. */
export function ofCode(code: string, text: string): TidegateError {
  if (code === "limit.reached") return new LimitReachedError(text);
  return new (BY_CODE[code] ?? TidegateError)(text, code === "" ? "internal" : code);
}

/** The failure that the end of a WebSocket stands for (RFC 6455, section 7.4.1), with the peer's reason. */
export function ofClose(code: number, reason: string): TidegateError {
  const text = reason === "" ? `the node closed the connection with ${code}` : reason;
  switch (code) {
    case 1013:
      return new LimitReachedError(text);
    case 1008:
      return new ActionDeniedError(text, "auth.action.denied");
    case 1002:
    case 1003:
    case 1007:
      return new TidegateError(text, "link.protocol");
    case 1009:
      return new ImageRefusedError(text, "sdk.close.1009");
    default:
      return new LinkDownError(text);
  }
}

/** A message of the node that is not what its protocol says. */
export function malformed(what: string): TidegateError {
  return new TidegateError(`the node sent ${what}`, "link.protocol");
}
