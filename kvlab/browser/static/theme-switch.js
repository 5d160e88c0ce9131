/* Streamlit keeps the theme per address and has its own switch in a menu that this app does not show. The choice is kept for
   every page of the app, so that each opens in it, and taken at once where Streamlit's front end gives us its setter. */

const VERSION = 2; // of Streamlit's note in the browser
const TAKEN_MS = 60; // until the front end knows the theme that it tells the server

export default function (component) {
  const root = component.parentElement;
  const buttons = [...root.querySelectorAll("[data-theme]")];
  const keys = keysOf(component.data.paths);
  const mark = () => {
    const chosen = read(keys) ?? "System";
    for (const button of buttons) {
      button.setAttribute("aria-checked", String(button.dataset.theme === chosen));
      button.tabIndex = button.dataset.theme === chosen ? 0 : -1;
    }
  };
  const choose = (name) => {
    const theme = context();
    const wanted = theme?.availableThemes.find((one) => nameOf(one) === name);
    if (wanted) theme.setTheme(wanted);
    keep(keys, name); // after the setter, which notes it for this page alone
    mark();
    if (!wanted) location.reload();
    else setTimeout(() => component.setTriggerValue("chosen", name), TAKEN_MS); // figures are drawn anew
  };
  buttons.forEach((button, at) => {
    button.onclick = () => choose(button.dataset.theme);
    button.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = buttons[(at + step + buttons.length) % buttons.length];
      next.focus();
      choose(next.dataset.theme);
    };
  });
  const before = read(keys);
  if (before) keep(keys, before); // for pages that were not in the menu then
  mark();
}

/* The notes of this page first, then of the others; the app may lie under a path of its own. */
function keysOf(paths) {
  const here = location.pathname;
  const page = paths.find((path) => path && here.endsWith(`/${path}`)) ?? "";
  const base = here.slice(0, here.length - page.length);
  const all = [here, ...paths.map((path) => base + path)];
  return [...new Set(all)].map((path) => `stActiveTheme-${path}-v${VERSION}`);
}

function read(keys) {
  try {
    return keys.map((key) => JSON.parse(localStorage.getItem(key))).find((name) => typeof name === "string") ?? null;
  } catch {
    return null;
  }
}

function keep(keys, name) {
  try {
    for (const key of keys) localStorage.setItem(key, JSON.stringify(name));
  } catch { /* a browser that keeps nothing shows the system's theme the next time */ }
}

function nameOf(theme) {
  return theme.displayName === "System" || /Auto$|system/i.test(theme.name) ? "System" : /Dark/.test(theme.name) ? "Dark" : "Light";
}

/* What Streamlit's own switch uses: the nearest value above the page's root that has a setter of themes. */
function context() {
  const app = document.querySelector('[data-testid="stApp"]');
  const field = app && Object.keys(app).find((key) => key.startsWith("__reactFiber$"));
  for (let fiber = field && app[field]; fiber; fiber = fiber.return) {
    const value = fiber.memoizedProps?.value;
    if (value && typeof value.setTheme === "function" && Array.isArray(value.availableThemes)) return value;
  }
  return null;
}
