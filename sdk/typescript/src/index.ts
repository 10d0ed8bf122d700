/**
 * Camera frames within bounds of latency and accuracy, and detection, from a Tidegate node.
 *
 *     import { connect } from "tidegate";
 *
 *     const node = await connect("https://edge.example:7080", { user: "ada", password });
 *     for await (const frame of node.frames("cam1", { latencyMs: 100, accuracy: 0.95 })) {
 *       console.log(frame.verdict, frame.jpeg.byteLength);
 *     }
 *
 * Every failure is a `TidegateError`.
 */

export { Client, connect, type ConnectOptions, type Identity, type Snapshot } from "./client.js";
export type { Box, Class, Detections, LiveDetection, Point } from "./detections.js";
export { DetectorSocket, type DetectorOptions } from "./detector.js";
export {
  ActionDeniedError,
  CameraElsewhereError,
  CameraOfflineError,
  CameraUnknownError,
  DetectorFailedError,
  FrameMissingError,
  IdentityRefusedError,
  ImageRefusedError,
  InvalidRequestError,
  LimitReachedError,
  LinkDownError,
  ModelUnknownError,
  TidegateError,
} from "./errors.js";
export {
  Frame,
  type AccuracyAssumed,
  type Bounds,
  type Camera,
  type CameraOffline,
  type CameraOnline,
  type ControllerFailed,
  type Corners,
  type Ended,
  type Event,
  type Feasible,
  type Infeasible,
  type KnobsChanged,
  type Missed,
  type NoFrames,
  type Notice,
  type Silent,
  type Size,
  type Stages,
  type Started,
  type Unchanged,
  type Updated,
  type Verdict,
} from "./frames.js";
export type { Retries } from "./retries.js";
export { DetectionStream, EventStream, FrameStream, type Changes, type DetectionOptions, type FrameOptions } from "./streams.js";
export type { Bytes, Credentials } from "./transport.js";
