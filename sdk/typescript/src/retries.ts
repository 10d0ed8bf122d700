/** How hard a stream tries to get a broken connection back. */
export interface Retries {
  /** Tries in a row before the stream fails; a message begins the count from zero. 0 never tries again. 20 by default. */
  readonly max: number;
  /** Before the first try, in ms; doubles with each, up to `waitMaxMs`. 100 by default. */
  readonly waitMs: number;
  /** Longest wait, in ms. 5000 by default. */
  readonly waitMaxMs: number;
}

/** About a minute and a half. */
export const RETRIES: Retries = { max: 20, waitMs: 100, waitMaxMs: 5000 };

/** ms to wait after so many tries. */
export function waitMs(retries: Retries, tries: number): number {
  return Math.min(retries.waitMaxMs, retries.waitMs * 2 ** Math.min(tries, 30));
}

/** Waits; returns early where `signal` is aborted. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const over = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", over);
      resolve();
    };
    const timer = setTimeout(over, ms);
    signal.addEventListener("abort", over);
  });
}
