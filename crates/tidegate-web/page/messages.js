// What the node's messages say: numbers that are not rounded, the part of a detection that is shown, and how long nothing has come.

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

/** A stream is silent after that time without a picture, in ms, or after so many times the usual time between two. */
const SILENT_AFTER = 1500;
const SILENT_TIMES = 2.5;
const USUAL_MAX = 60_000;

/**
 * The clock of a stream of pictures: one that a node has stopped to send looks like one in which nothing happens. Times are in ms.
 *
 * The usual time between two pictures is the shorter of the last two times, or that which is asked for, if it is longer.
 */
export class Silence {
  #heardAt = 0;
  #gaps = [0, 0];

  /** Counts from `now` on. */
  begin(now) {
    this.#heardAt = now;
    this.#gaps = [0, 0];
  }

  /** A picture came, or the word that it is unchanged. */
  heard(now) {
    this.#gaps = [this.#gaps[1], now - this.#heardAt];
    this.#heardAt = now;
  }

  /** Time since the last picture. */
  age(now) {
    return now - this.#heardAt;
  }

  /** Whole seconds without a picture; 0 while that is usual. `interval` is the time between pictures that is asked for. */
  seconds(now, interval = 0) {
    const age = this.age(now);
    const usual = Math.min(Math.max(interval, Math.min(...this.#gaps)), USUAL_MAX);
    return age >= Math.max(SILENT_AFTER, SILENT_TIMES * usual) ? Math.round(age / 1000) : 0;
  }
}

/** The state of a client's session in words; also of a part of the node that is no longer configured, whose session ends. */
export function sessionState({ connected, ends_in_s }) {
  if (ends_in_s === undefined) return connected ? "connected" : "away";
  const [unit, name] = ends_in_s < 60 ? [1, "s"] : ends_in_s < 3600 ? [60, "min"] : [3600, "h"];
  return `gone, ends in ${Math.floor(ends_in_s / unit)} ${name}`;
}

/** The same words in all that shows or hands over live pictures. */
export const noPicture = (seconds) => `no picture for ${seconds} s`;
