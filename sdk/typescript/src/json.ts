/**
 * JSON of a node. Its times are whole nanoseconds since the Unix epoch, which a JavaScript number cannot hold: they are kept exactly, as
 * `bigint`, since a frame is asked for by its time.
 */

import { malformed } from "./errors.js";

/** An object whose fields are not known to be anything yet. */
export type Fields = { readonly [name: string]: unknown };

// Strings are matched too, so that digits within them are left alone.
const STRING_OR_NUMBER = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const WHOLE = /^-?\d{16,}$/;

/** Parses JSON; a whole number that a JavaScript number cannot hold comes as the string of its digits, for `nanos`. */
export function parse(text: string): unknown {
  try {
    return JSON.parse(text.replace(STRING_OR_NUMBER, (part) => (WHOLE.test(part) ? `"${part}"` : part)));
  } catch {
    throw malformed(`text that is no JSON: ${text.slice(0, 80)}`);
  }
}

/** The fields of an object. */
export function fields(value: unknown, what: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw malformed(`${what} that is no object`);
  return value as Fields;
}

/** The items of an array; none where it is missing. */
export function items(value: unknown, what: string): readonly unknown[] {
  if (value === undefined || value === null) return [];
  if (!Array.isArray(value)) throw malformed(`${what} that is no array`);
  return value;
}

/** A number; `missing` where there is none. */
export function number(value: unknown, missing = 0): number {
  return typeof value === "number" ? value : missing;
}

/** A number, or undefined. */
export function optional(value: unknown): number | undefined {
  return typeof value === "number" ? value : undefined;
}

/** A text; empty where there is none. */
export function string(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** An instant in ns since the Unix epoch, or undefined. */
export function nanos(value: unknown): bigint | undefined {
  if (typeof value === "number" && Number.isSafeInteger(value)) return BigInt(value);
  return typeof value === "string" && /^-?\d+$/.test(value) ? BigInt(value) : undefined;
}
