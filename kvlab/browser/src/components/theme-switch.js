/** @import { Component } from "../types.js" */
import { watchAccess } from "../access.js";
import { storageKeys, storedTheme, storeTheme, themeName } from "../theme.js";

const REPORT_DELAY_MS = 60; // until Streamlit's front end, which shows the theme, sends it to the server too
const LONGEST_WAIT_MS = 1000; // for the page's ground to change, which it does not if the system's theme is chosen by name

/** @typedef {{ name: string, displayName?: string }} Theme */
/** @typedef {{ availableThemes: Theme[], setTheme(theme: Theme): void }} ThemeContext */

/**
 * The app's switch of themes, in place of Streamlit's, whose menu the app does not show. The choice is stored for every
 * page, and applied at once if Streamlit's setter is found.
 * @param {Component<{ paths: string[] }>} component
 */
export default function addThemeSwitch(component) {
  watchAccess();
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
    const ground = groundColour(), begun = performance.now();
    if (theme) context?.setTheme(theme);
    storeTheme(keys, name); // after the setter, which stores it for this page only
    showCurrent();
    const report = () => {
      const isShown = groundColour() !== ground || performance.now() - begun > LONGEST_WAIT_MS;
      if (isShown) setTimeout(() => component.setTriggerValue("chosen", name), REPORT_DELAY_MS); // the server redraws the figures
      else requestAnimationFrame(report);
    };
    if (theme) report();
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

function groundColour() {
  const app = document.querySelector('[data-testid="stApp"]');
  return app && getComputedStyle(app).backgroundColor;
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
