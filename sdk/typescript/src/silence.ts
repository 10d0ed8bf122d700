/** The clock of a stream of pictures: one that a node has stopped to send looks like one in which nothing happens. Times are in ms. */

/** A stream is silent after that time without a picture, or after `TIMES` the usual time between two. */
const AFTER_MS = 1500;
const TIMES = 2.5;
const USUAL_MAX_MS = 60_000;

/** How often a stream looks at its clock. */
export const LOOK_EVERY_MS = 250;
/** A connection that brings nothing for so long is opened again, then after twice that time, up to the second. */
export const REOPEN_AFTER_MS = [10_000, 120_000] as const;

/**
 * Says, second after second, how long no picture has come.
 *
 * The usual time between two pictures is the shorter of the last two times, or that which is asked for, if it is longer.
 */
export class Silence {
  #since: number;
  #heardAt: number | undefined;
  #gaps: readonly [number, number] = [0, 0];
  #said = 0;

  /** Counts from `now` on. */
  constructor(now: number) {
    this.#since = now;
  }

  /** A picture came, or the word that it is unchanged. */
  heard(now: number): void {
    if (this.#heardAt !== undefined) this.#gaps = [this.#gaps[1], now - this.#heardAt];
    this.#heardAt = now;
    this.begin(now);
  }

  /** Counts again from `now` on: pictures are to come from there. */
  begin(now: number): void {
    this.#since = now;
    this.#said = 0;
  }

  /** Time without a picture. */
  ms(now: number): number {
    return now - this.#since;
  }

  /** Whole seconds without a picture; 0 while that is usual, and where it was said. `fps` is what is asked for, if not all. */
  seconds(now: number, fps?: number): number {
    const silent = this.ms(now);
    const asked = fps === undefined || fps === 0 ? 0 : 1000 / fps;
    const usual = Math.min(Math.max(asked, Math.min(...this.#gaps)), USUAL_MAX_MS);
    const seconds = Math.round(silent / 1000);
    if (silent < Math.max(AFTER_MS, TIMES * usual) || seconds === this.#said) return 0;
    this.#said = seconds;
    return seconds;
  }
}

/** The same words in all that shows or hands over live pictures. */
export function noPicture(seconds: number): string {
  return `no picture for ${seconds} s`;
}
