/**
 * Frames, and the other events of a subscription. Nothing here does I/O.
 *
 * Capture times are nanoseconds since the Unix epoch in a `bigint`, since they name a frame exactly; latencies are milliseconds in a
 * `number`, accuracies 0 to 1.
 */

import { malformed } from "./errors.js";
import { fields, items, nanos, number, optional, string, type Fields } from "./json.js";

/** Width and height in pixels. */
export interface Size {
  readonly width: number;
  readonly height: number;
}

/** The demand that a stream makes on every frame. */
export interface Bounds {
  /** Longest time from capture to the node's handing the frame over, in ms. */
  readonly latencyMs: number;
  /** Lowest F1 of the detector on the delivered frame against the original, 0 to 1. */
  readonly accuracy: number;
}

/** How one delivered frame stands against the bounds of its stream. */
export interface Verdict {
  readonly latencyMs: number;
  readonly latencyBoundMs: number;
  readonly latencyKept: boolean;
  /** Estimated by the characterization table. */
  readonly accuracy: number;
  readonly accuracyBound: number;
  readonly accuracyKept: boolean;
  /** The knob setting in the words of the table, such as `1/2 q60`; `original` if the frame is untouched. */
  readonly knobs: string;
  /** Whether both bounds are kept. */
  readonly kept: boolean;
}

/** Where the time of one frame went, in ms. */
export interface Stages {
  /** Capture to the camera's log. */
  readonly captureMs: number;
  /** Applying the knobs. */
  readonly encodeMs: number;
  /** Waiting for the encoder and for the link. */
  readonly queueMs: number;
  /** First byte sent to last byte received by the node. */
  readonly networkMs: number;
  /** Received by the node to handed over. */
  readonly deliveryMs: number;
}

/** A box in pixels: left, top, right, bottom. */
export type Corners = readonly [left: number, top: number, right: number, bottom: number];

/** One frame. */
export class Frame {
  readonly type = "frame";
  /** The camera's name. */
  readonly camera: string;
  /** The JPEG image. */
  readonly jpeg: Uint8Array;
  /** When it was captured: ns since the Unix epoch, unique and increasing within one `epoch` of the camera. */
  readonly capturedAtNs: bigint;
  /** When this program had it, by this machine's clock. */
  readonly receivedAt: Date;
  /** Names the start of the camera's clock, by a number of 64 bits. Times of two epochs are not compared. */
  readonly epoch: bigint;
  /** Size of the delivered image. */
  readonly size: Size;
  /** Size of the original; undefined where the node does not tell it and the frame is not untouched. */
  readonly sourceSize: Size | undefined;
  /** From the past or a filled gap: its latency bound counts from sending. */
  readonly replayed: boolean;
  /** Why it has these knobs, in one sentence; empty where that is not known. */
  readonly reason: string;
  readonly stages: Stages;
  readonly verdict: Verdict;

  /** Made by a stream. */
  constructor(camera: string, told: Fields, jpeg: Uint8Array, bounds: Bounds) {
    this.camera = camera;
    this.jpeg = jpeg;
    const at = nanos(told["captured_at"]);
    const size = sizeOf(told["size"]);
    if (at === undefined || size === undefined) throw malformed("a frame without its time or its size");
    this.capturedAtNs = at;
    this.receivedAt = new Date();
    this.epoch = nanos(told["epoch"]) ?? 0n;
    this.size = size;
    const knobs = string(told["knobs"]);
    this.sourceSize = sizeOf(told["source_size"]) ?? (knobs === "original" ? size : undefined);
    this.replayed = told["replayed"] === true;
    this.reason = string(told["reason"]);
    this.stages = stagesOf(told["stages"]);
    const latencyMs = number(told["latency_ms"]);
    const latencyKept = this.replayed || latencyMs <= bounds.latencyMs;
    const accuracyKept = told["accuracy_kept"] === true;
    this.verdict = {
      latencyMs,
      latencyBoundMs: bounds.latencyMs,
      latencyKept,
      accuracy: number(told["accuracy"]),
      accuracyBound: bounds.accuracy,
      accuracyKept,
      knobs,
      kept: latencyKept && accuracyKept,
    };
  }

  /** `capturedAtNs` as a date, cut to ms. */
  get capturedAt(): Date {
    return dateOf(this.capturedAtNs);
  }

  /**
   * A box in pixels of this image, brought to pixels of the original that `Client.snapshot` gives for `capturedAtNs`; undefined where
   * the size of the original is not known.
   */
  toSource(box: Corners): Corners | undefined {
    if (this.sourceSize === undefined) return undefined;
    const across = this.sourceSize.width / this.size.width;
    const down = this.sourceSize.height / this.size.height;
    return [box[0] * across, box[1] * down, box[2] * across, box[3] * down];
  }
}

/** The subscription runs; comes again after a broken connection. */
export interface Started {
  readonly type: "started";
  readonly bounds: Bounds;
}

/** Other bounds hold from now on, as `update` asked. */
export interface Updated {
  readonly type: "updated";
  readonly bounds: Bounds;
}

/** Nothing moved since an earlier frame, so this one was not sent. Counts as delivered. */
export interface Unchanged {
  readonly type: "unchanged";
  readonly capturedAtNs: bigint;
  /** Capture time of the delivered frame that still shows the scene. */
  readonly sameAsNs: bigint;
}

/** Frames that were captured and are not delivered. */
export interface Missed {
  readonly type: "missed";
  readonly fromNs: bigint;
  readonly toNs: bigint;
  /** How many; 0 if that is not known. */
  readonly count: number;
  /** Why, in words. */
  readonly sentence: string;
}

/** No setting keeps both bounds at the capacity there is; the fields say which could be kept. */
export interface Infeasible {
  readonly type: "infeasible";
  /** The whole in one sentence. */
  readonly sentence: string;
  /** The shortest latency at the accuracy asked for, in ms; undefined if no setting is accurate enough. */
  readonly latencyAtAccuracyMs: number | undefined;
  /** The highest accuracy at the latency asked for; undefined if nothing fits. */
  readonly accuracyAtLatency: number | undefined;
  /** The frame rate at which the accuracy could be kept; undefined if it is not the rate that is too high. */
  readonly framesPerSecond: number | undefined;
}

/** Both bounds can be kept again. */
export interface Feasible {
  readonly type: "feasible";
}

/** The camera, or the node itself, cannot be reached; the stream waits for it. */
export interface CameraOffline {
  readonly type: "camera-offline";
  readonly sentence: string;
  /** Whether it is the node that is not reached. */
  readonly node: boolean;
}

/** The camera is back: it is reached again, or gives frames again. */
export interface CameraOnline {
  readonly type: "camera-online";
}

/** The camera is reached, and its source gives no frames that it can take. */
export interface NoFrames {
  readonly type: "no-frames";
  readonly sentence: string;
}

/**
 * No picture came for longer than is usual, nor a word that it is unchanged, and the node does not say why: told by the clock of this
 * program, after 1.5 s at first and then each second, until a picture comes or the reason.
 */
export interface Silent {
  readonly type: "silent";
  readonly seconds: number;
  /** Such as `no picture for 3 s`. */
  readonly sentence: string;
}

/** The setting of the frames changed. */
export interface KnobsChanged {
  readonly type: "knobs-changed";
  readonly capturedAtNs: bigint;
  readonly before: string;
  readonly after: string;
  /** Why, in one sentence. */
  readonly sentence: string;
}

/** The controller failed; frames travel as captured from now on. */
export interface ControllerFailed {
  readonly type: "controller-failed";
  readonly sentence: string;
}

/** No table was made for this camera and detector: accuracies are a default's, or none is known. */
export interface AccuracyAssumed {
  readonly type: "accuracy-assumed";
  readonly sentence: string;
}

/** Nothing follows. */
export interface Ended {
  readonly type: "ended";
  /** Why: `complete`, `unsubscribed`, `camera_unregistered`, or a word of a newer node; empty where the node gives none. */
  readonly reason: string;
  /** The same in a sentence. */
  readonly sentence: string;
}

/** All that a subscription tells beside frames. */
export type Notice =
  | Started
  | Updated
  | Unchanged
  | Missed
  | Infeasible
  | Feasible
  | CameraOffline
  | CameraOnline
  | NoFrames
  | Silent
  | KnobsChanged
  | ControllerFailed
  | AccuracyAssumed
  | Ended;

/** All that a subscription tells. */
export type Event = Frame | Notice;

/** The bounds that a message says, or those before. */
export function boundsTold(told: Fields, before: Bounds): Bounds {
  return { latencyMs: number(told["latency_ms"], before.latencyMs), accuracy: number(told["accuracy"], before.accuracy) };
}

/** The event of a message that is no frame; undefined for one of a newer protocol. */
export function noticeOf(told: Fields, bounds: Bounds): Notice | undefined {
  const sentence = string(told["text"]);
  switch (told["type"]) {
    case "started":
      return { type: "started", bounds };
    case "updated":
      return { type: "updated", bounds };
    case "unchanged":
      return { type: "unchanged", capturedAtNs: nanos(told["captured_at"]) ?? 0n, sameAsNs: nanos(told["same_as"]) ?? 0n };
    case "missed":
      return {
        type: "missed",
        fromNs: nanos(told["from"]) ?? 0n,
        toNs: nanos(told["to"]) ?? 0n,
        count: number(told["count"]),
        sentence,
      };
    case "infeasible":
      return {
        type: "infeasible",
        sentence,
        latencyAtAccuracyMs: optional(told["latency_at_accuracy_ms"]),
        accuracyAtLatency: optional(told["accuracy_at_latency"]),
        framesPerSecond: optional(told["fps"]),
      };
    case "feasible":
      return { type: "feasible" };
    case "camera_offline":
      return { type: "camera-offline", sentence, node: false };
    case "camera_online":
      return { type: "camera-online" };
    case "no_frames":
      return { type: "no-frames", sentence };
    case "knobs_changed":
      return {
        type: "knobs-changed",
        capturedAtNs: nanos(told["captured_at"]) ?? 0n,
        before: string(told["from"]),
        after: string(told["to"]),
        sentence,
      };
    case "controller_failed":
      return { type: "controller-failed", sentence };
    case "accuracy_assumed":
      return { type: "accuracy-assumed", sentence };
    case "ended":
      return { type: "ended", reason: string(told["reason"]), sentence };
    default:
      return undefined;
  }
}

/** One camera of a node. */
export interface Camera {
  readonly name: string;
  /** Whether it is reached now. */
  readonly online: boolean;
  /** Size of its frames; undefined before the first. */
  readonly size: Size | undefined;
  readonly fps: number;
  /** Bytes of a frame of late. */
  readonly frameBytes: number;
  /** Capture times of the oldest and the newest frame of its log; undefined while it is empty. */
  readonly oldestAtNs: bigint | undefined;
  readonly newestAtNs: bigint | undefined;
  readonly logBytes: number;
  readonly logBytesMax: number;
  readonly subscriptions: number;
  /** How its frames come, in the node's words. */
  readonly transport: string;
  /** Why it gives no frames although it is reached; empty if it does. */
  readonly noFrames: string;
  /**
   * By which clock its frames are timed, where something is wrong with that (timestamps that are no clock, a line that is full); empty where
   * nothing is.
   */
  readonly captureClock: string;
  /** The camera of the node's configuration whose substream it is; empty if it is none. */
  readonly substreamOf: string;
  /** The node that has it, where that is another one than the node that answers; empty where it is this one. */
  readonly node: string;
}

/** Cameras of the answer of `GET /cameras`, in order of their names. */
export function camerasOf(answer: unknown): Camera[] {
  const told = items(fields(answer, "a list of cameras")["cameras"], "a list of cameras");
  const cameras = told.map((each): Camera => {
    const camera = fields(each, "a camera");
    return {
      name: string(camera["name"]),
      online: camera["online"] === true,
      size: sizeOf(camera["size"]),
      fps: number(camera["fps"]),
      frameBytes: number(camera["frame_bytes"]),
      oldestAtNs: nanos(camera["oldest_at"]),
      newestAtNs: nanos(camera["newest_at"]),
      logBytes: number(camera["log_bytes"]),
      logBytesMax: number(camera["log_bytes_max"]),
      subscriptions: number(camera["subscriptions"]),
      transport: string(camera["transport"]),
      noFrames: string(camera["no_frames"]),
      captureClock: string(camera["capture_clock"]),
      substreamOf: string(camera["substream_of"]),
      node: string(camera["node"]),
    };
  });
  return cameras.sort((one, other) => (one.name < other.name ? -1 : 1));
}

/** `[width, height]`, or an object of both. */
export function sizeOf(value: unknown): Size | undefined {
  if (Array.isArray(value)) {
    const [width, height] = value as unknown[];
    return typeof width === "number" && typeof height === "number" ? { width, height } : undefined;
  }
  if (typeof value !== "object" || value === null) return undefined;
  const { width, height } = value as Fields;
  return typeof width === "number" && typeof height === "number" ? { width, height } : undefined;
}

/** An instant as a date, cut to ms. */
export function dateOf(atNs: bigint): Date {
  return new Date(Number(atNs / 1_000_000n));
}

function stagesOf(value: unknown): Stages {
  const told = value === undefined ? {} : fields(value, "stages");
  return {
    captureMs: number(told["capture_ms"]),
    encodeMs: number(told["encode_ms"]),
    queueMs: number(told["queue_ms"]),
    networkMs: number(told["network_ms"]),
    deliveryMs: number(told["delivery_ms"]),
  };
}
