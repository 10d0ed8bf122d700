/** Answers of detectors. Nothing here does I/O. */

import { malformed } from "./errors.js";
import { sizeOf, type Size } from "./frames.js";
import { fields, items, nanos, number, string, type Fields } from "./json.js";

/** A thing that was found, in pixels. */
export interface Box {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
  /** On the model's own scale. */
  readonly score: number;
  readonly label: string;
}

/** A class of the whole image. */
export interface Class {
  readonly label: string;
  readonly score: number;
}

/** A point of a pose, in pixels. */
export interface Point {
  readonly x: number;
  readonly y: number;
  readonly score: number;
}

/** The answer of a model about one image. */
export interface Detections {
  readonly model: string;
  /** The size of the image that boxes and poses are in pixels of. */
  readonly image: Size;
  readonly boxes: readonly Box[];
  /** Classes of the whole image, for models that classify. */
  readonly classes: readonly Class[];
  /** People, each as its points, for models of poses. */
  readonly poses: readonly (readonly Point[])[];
  /** Where the node's time went, in ms. */
  readonly times: { readonly queueMs: number; readonly decodeMs: number; readonly inferMs: number; readonly totalMs: number };
}

/** The findings of the node's own detector in a frame of a camera. */
export interface LiveDetection {
  /** The section of the node's configuration that asked for it. */
  readonly detector: string;
  readonly model: string;
  readonly camera: string;
  /** Names the frame: `Client.snapshot` gives its original. */
  readonly capturedAtNs: bigint;
  readonly epoch: bigint;
  /** Size of the frame that the detector looked at. */
  readonly frame: Size;
  /** Size of the original, which the boxes are in pixels of. */
  readonly source: Size;
  readonly knobs: string;
  readonly accuracy: number;
  readonly boxes: readonly Box[];
  /** Capture to answer, in ms. */
  readonly totalMs: number;
  /** The bound that was asked for, in ms. */
  readonly boundMs: number;
  /** Whether it was kept. */
  readonly kept: boolean;
}

/** The answer about one image. */
export function detectionsOf(answer: unknown): Detections {
  const told = fields(answer, "an answer of a detector");
  const image = sizeOf(told["image"]);
  if (image === undefined) throw malformed("an answer of a detector without the size of its image");
  const times = told["times"] === undefined ? {} : fields(told["times"], "times");
  return {
    model: string(told["model"]),
    image,
    boxes: boxesOf(told),
    classes: items(told["classes"], "classes").map((each): Class => {
      const [score, label] = items(each, "a class");
      return { label: string(label), score: number(score) };
    }),
    poses: items(told["poses"], "poses").map((pose) =>
      items(pose, "a pose").map((point): Point => {
        const [x, y, score] = items(point, "a point");
        return { x: number(x), y: number(y), score: number(score) };
      }),
    ),
    times: {
      queueMs: number(times["queue_ms"]),
      decodeMs: number(times["decode_ms"]),
      inferMs: number(times["infer_ms"]),
      totalMs: number(times["total_ms"]),
    },
  };
}

/** A detection as the node publishes it; undefined for a message of another kind. */
export function liveDetectionOf(message: unknown): LiveDetection | undefined {
  const told = fields(message, "a detection");
  if (told["type"] !== "detection") return undefined;
  const at = nanos(told["captured_at"]);
  const source = sizeOf(told["source"]);
  if (at === undefined || source === undefined) throw malformed("a detection without its time or the size of its source");
  const times = told["times"] === undefined ? {} : fields(told["times"], "times");
  return {
    detector: string(told["detector"]),
    model: string(told["model"]),
    camera: string(told["camera"]),
    capturedAtNs: at,
    epoch: nanos(told["epoch"]) ?? 0n,
    frame: sizeOf(told["frame"]) ?? source,
    source,
    knobs: string(told["knobs"]),
    accuracy: number(told["accuracy"]),
    boxes: boxesOf(told),
    totalMs: number(times["total_ms"]),
    boundMs: number(told["bound_ms"]),
    kept: told["kept"] === true,
  };
}

function boxesOf(told: Fields): Box[] {
  return items(told["boxes"], "boxes").map((each): Box => {
    const [left, top, right, bottom, score, label] = items(each, "a box");
    return {
      left: number(left),
      top: number(top),
      right: number(right),
      bottom: number(bottom),
      score: number(score),
      label: string(label),
    };
  });
}
