/* Streamlit stores the theme per address, as a JSON string in local storage. */

const STORAGE_VERSION = 2;

/**
 * Streamlit's storage keys of all pages, the current page first. The app may be served below a path of its own.
 * @param {string[]} paths of all pages
 * @param {string} pathname of the current page
 */
export function storageKeys(paths, pathname) {
  const page = paths.find((path) => path && pathname.endsWith(`/${path}`)) ?? "";
  const base = pathname.slice(0, pathname.length - page.length);
  const all = new Set([pathname, ...paths.map((path) => base + path)]);
  return [...all].map((path) => `stActiveTheme-${path}-v${STORAGE_VERSION}`);
}

/**
 * The theme stored under the first of the keys that has one, or null.
 * @param {string[]} keys
 * @returns {string | null}
 */
export function storedTheme(keys) {
  try {
    const themes = keys.map((key) => JSON.parse(localStorage.getItem(key) ?? "null"));
    return themes.find((theme) => typeof theme === "string") ?? null;
  } catch {
    return null;
  }
}

/**
 * @param {string[]} keys
 * @param {string} theme
 */
export function storeTheme(keys, theme) {
  try {
    for (const key of keys) localStorage.setItem(key, JSON.stringify(theme));
  } catch { /* a browser without storage shows the system's theme on the next visit */ }
}

/**
 * `Light`, `Dark` or `System` for one of Streamlit's themes.
 * @param {{ name: string, displayName?: string }} theme
 */
export function themeName({ name, displayName }) {
  if (displayName === "System" || /Auto$|system/i.test(name)) return "System";
  return /Dark/.test(name) ? "Dark" : "Light";
}
