/**
 * A token's text in the text panel.
 * @param {string} text
 */
export const shownText = (text) => (text === "" ? "∅" : text);

/**
 * A token's text in a sentence: white space made visible, cut to `limit` characters.
 * @param {string} text
 * @param {number} limit
 */
export function visibleText(text, limit) {
  const shown = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍") || "∅";
  return cut(shown, limit);
}

/**
 * @param {string} text
 * @param {number} limit
 */
export const cut = (text, limit) => (text.length > limit ? text.slice(0, limit - 1) + "…" : text);

/** @param {number} count */
export const formatCount = (count) => count.toLocaleString("en");

/**
 * A number with three significant digits.
 * @param {number} value
 */
export function formatNumber(value) {
  if (value === 0) return "0";
  return Math.abs(value) >= 1e-3 ? Number(value.toPrecision(3)).toString() : value.toExponential(1);
}

/**
 * The float16 with these 16 bits; attention masses are recorded in half precision.
 * @param {number} bits
 */
export function float16(bits) {
  const exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
}
