// What the node's messages say: numbers that are not rounded, and the part of a detection that is shown.

/** Cameras whose newest detections are kept, detectors of each, and boxes of one detection. */
const CAMERAS_MAX = 256;
const DETECTORS_MAX = 16;
const BOXES_MAX = 200;
const NAME_MAX = 256;

/** Strings are matched too, so that digits within them stay as they are; also one without an end, which is not looked through again. */
const STRING_OR_NUMBER = /"[^"\\]*(?:\\.[^"\\]*)*"?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** JSON whose integers of 16 digits and more become text: a number of JavaScript does not hold them exactly. */
export const exact = (text) =>
  JSON.parse(text.replace(STRING_OR_NUMBER, (part) => (/^-?\d{16,}$/.test(part) ? `"${part}"` : part)));

const isName = (name) => typeof name === "string" && name.length > 0 && name.length <= NAME_MAX;
/** A number of nanoseconds, as `exact` has it, which a date of JavaScript can say. */
const isTime = (at) => (typeof at === "string" && /^-?\d{16,19}$/.test(at)) || Number.isSafeInteger(at);
const sizeOf = (size) => (size?.width > 0 && size?.height > 0 ? { width: Number(size.width), height: Number(size.height) } : null);
/** `[left, top, right, bottom, score, label]`. */
const isBox = (box) =>
  Array.isArray(box) && [0, 1, 2, 3, 4].every((at) => Number.isFinite(box[at])) && typeof box[5] === "string" && box[5].length <= NAME_MAX;

/** The part of a detection that is shown; null for what another program published to the same topic. */
export function readDetection(told) {
  if (told?.type !== "detection") return null;
  const { camera, detector, captured_at, boxes, source, frame, times, kept } = told;
  if (!isName(camera) || !isName(detector) || !isTime(captured_at) || !Array.isArray(boxes)) return null;
  const shown = boxes.slice(0, BOXES_MAX);
  if (!shown.every(isBox)) return null;
  const took = Number.isFinite(times?.total_ms) ? times.total_ms : null;
  return { camera, detector, captured_at, boxes: shown, size: sizeOf(source) ?? sizeOf(frame), took, isLate: kept === false };
}

/** The newest detection of each detector, by camera. Of too many, the one that was silent for longest gives way. */
export class Newest {
  #cameras = new Map();

  set(detection) {
    const { camera, detector } = detection;
    const detectors = this.#cameras.get(camera) ?? new Map();
    setNewest(detectors, detector, detection, DETECTORS_MAX);
    setNewest(this.#cameras, camera, detectors, CAMERAS_MAX);
  }

  of(camera) {
    return [...(this.#cameras.get(camera)?.values() ?? [])];
  }

  get cameras() {
    return this.#cameras.size;
  }

  clear() {
    this.#cameras.clear();
  }
}

function setNewest(map, key, value, max) {
  map.delete(key);
  if (map.size >= max) map.delete(map.keys().next().value);
  map.set(key, value);
}
