/** @import { Component } from "../types.js" */
import { watchAccess } from "../access.js";
import { storageKeys, storedTheme, storeTheme, themeName } from "../theme.js";

// When the server is asked to redraw its figures: at once, and again until it has. A request is lost if the component is
// mounted anew meanwhile, as it is while a page is still being drawn.
const REPORT_DELAYS_MS = [60, 2000, 5000, 15000];

/** @type {Component<{ paths: string[], drawn: string }>} */
let latest; // as it was last mounted; `drawn` is the theme of the server's figures

/** @typedef {{ name: string, displayName?: string }} Theme */
/** @typedef {{ availableThemes: Theme[], setTheme(theme: Theme): void }} ThemeContext */

/**
 * The app's switch of themes, in place of Streamlit's, whose menu the app does not show. The choice is stored for every
 * page, and applied at once if Streamlit's setter is found.
 * @param {Component<{ paths: string[], drawn: string }>} component
 */
export default function addThemeSwitch(component) {
  watchAccess();
  latest = component;
  /** @type {HTMLElement[]} */
  const buttons = [...component.parentElement.querySelectorAll("[data-theme]")].map((node) => /** @type {HTMLElement} */ (node));
  const keys = storageKeys(component.data.paths, location.pathname);
  const showCurrent = () => {
    const current = storedTheme(keys) ?? "System";
    for (const button of buttons) {
      button.setAttribute("aria-checked", String(button.dataset.theme === current));
      button.tabIndex = button.dataset.theme === current ? 0 : -1;
    }
  };
  const choose = (/** @type {string} */ name) => {
    const context = themeContext(), theme = context?.availableThemes.find((option) => themeName(option) === name);
    if (theme) context?.setTheme(theme);
    storeTheme(keys, name); // after the setter, which stores it for this page only
    showCurrent();
    if (theme) report(name);
    else location.reload();
  };
  buttons.forEach((button, index) => {
    button.onclick = () => choose(button.dataset.theme ?? "System");
    button.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = buttons[(index + step + buttons.length) % buttons.length];
      next.focus();
      choose(next.dataset.theme ?? "System");
    };
  });
  const stored = storedTheme(keys);
  if (stored) storeTheme(keys, stored); // for pages added to the menu since
  showCurrent();
}

function report(/** @type {string} */ name, attempt = 0) {
  if (attempt === REPORT_DELAYS_MS.length) return;
  setTimeout(() => {
    const app = document.querySelector('[data-testid="stApp"]');
    const ground = app ? getComputedStyle(app).backgroundColor.match(/\d+/g)?.map(Number) ?? [] : [];
    const shown = ground.slice(0, 3).reduce((sum, part) => sum + part, 0) < 384 ? "dark" : "light";
    if (attempt > 0 && latest.data.drawn === shown) return;
    latest.setTriggerValue("chosen", name);
    report(name, attempt + 1);
  }, REPORT_DELAYS_MS[attempt]);
}

/** The theme context of Streamlit's React tree: the nearest value above the page's root that has a setter of themes. */
function themeContext() {
  const app = /** @type {any} */ (document.querySelector('[data-testid="stApp"]'));
  const field = app && Object.keys(app).find((key) => key.startsWith("__reactFiber$"));
  for (let fiber = field && app[field]; fiber; fiber = fiber.return) {
    const value = fiber.memoizedProps?.value;
    if (value && typeof value.setTheme === "function" && Array.isArray(value.availableThemes)) {
      return /** @type {ThemeContext} */ (value);
    }
  }
  return null;
}
