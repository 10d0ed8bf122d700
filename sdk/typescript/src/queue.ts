/** A bounded queue between a socket that pushes and a program that reads. */

/**
 * Newest first: where the reader is slow, the oldest item that may go goes.
 *
 * Always true: it holds at most `size` items that may go, and at most `KEPT_MAX` others.
 */
export class NewestQueue<T> {
  /** Items that went since the reader was slow. */
  skipped = 0;
  readonly #size: number;
  readonly #items: { readonly item: T; readonly mayGo: boolean }[] = [];
  #droppable = 0;
  #reader: { readonly resolve: (result: IteratorResult<T, undefined>) => void; readonly reject: (error: unknown) => void } | undefined;
  #end: { readonly error: unknown } | undefined;

  /** A queue for at most `size` items that may go. */
  constructor(size: number) {
    this.#size = size;
  }

  /** Hands an item over. Nothing is taken after `end`. */
  push(item: T, mayGo: boolean): void {
    if (this.#end !== undefined) return;
    if (this.#reader !== undefined) {
      const reader = this.#reader;
      this.#reader = undefined;
      reader.resolve({ done: false, value: item });
      return;
    }
    this.#items.push({ item, mayGo });
    if (mayGo && ++this.#droppable > this.#size) {
      this.#items.splice(this.#items.findIndex((held) => held.mayGo), 1);
      this.#droppable--;
      this.skipped++;
    } else if (!mayGo && this.#items.length - this.#droppable > KEPT_MAX) {
      this.#items.splice(this.#items.findIndex((held) => !held.mayGo), 1);
      this.skipped++;
    }
  }

  /** Nothing follows but what is here already; the reader then gets `error`, if there is one. */
  end(error?: unknown): void {
    if (this.#end !== undefined) return;
    this.#end = { error };
    const reader = this.#reader;
    this.#reader = undefined;
    if (reader === undefined) return;
    if (error === undefined) reader.resolve({ done: true, value: undefined });
    else reader.reject(this.#thrown());
  }

  /** Forgets what is here, and ends. */
  clear(): void {
    this.#items.length = 0;
    this.#droppable = 0;
    this.end();
    this.#end = { error: undefined };
  }

  /** The next item; waits for it. One reader at a time. */
  next(): Promise<IteratorResult<T, undefined>> {
    const held = this.#items.shift();
    if (held !== undefined) {
      if (held.mayGo) this.#droppable--;
      return Promise.resolve({ done: false, value: held.item });
    }
    if (this.#end !== undefined) {
      const error = this.#thrown();
      return error === undefined ? Promise.resolve({ done: true, value: undefined }) : Promise.reject(error);
    }
    if (this.#reader !== undefined) return Promise.reject(new TypeError("a stream is read by one reader at a time"));
    return new Promise((resolve, reject) => (this.#reader = { resolve, reject }));
  }

  /** The error of the end, which is thrown once. */
  #thrown(): unknown {
    const error = this.#end?.error;
    this.#end = { error: undefined };
    return error;
  }
}

/** Items that may not go are told by the node now and then; a reader that leaves so many waiting does not read at all. */
const KEPT_MAX = 256;
