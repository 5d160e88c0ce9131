// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/access.js src/components/theme-switch.js src/plotly-charts.js src/theme.js
// SHA-256 of the sources: adb5bfece472124ea6dc61a9e3e9dd596633d53b06a45e3f5b1c5b0c5c0c5783
// SHA-256 of the code: df37ae1f3316daa692ba57620a52778575ff5303d42cdae53d14f8aedd2e95e6
// src/plotly-charts.js
var SETTLE_MS = 100;
function watchPage(callback) {
  let timer;
  const run = () => {
    timer = void 0;
    callback();
  };
  const observer = new MutationObserver(() => {
    timer ??= setTimeout(run, SETTLE_MS);
  });
  observer.observe(document.body, { childList: true, subtree: true, attributeFilter: ["class"] });
  callback();
  return () => {
    clearTimeout(timer);
    observer.disconnect();
  };
}

// src/access.js
var ICON = '[data-testid="stIconMaterial"]:not([aria-hidden])';
var ICONS = `:is(a, button):has([data-testid="stMarkdownContainer"]) ${ICON}, [data-testid="stSidebarNavLink"] ${ICON}`;
var CHART_TOOLS = '.modebar-btn:not([tabindex="-1"])';
var SCROLLED = '[data-testid="stVerticalBlock"][overflow="auto"]:not([tabindex])';
var isWatching = false;
function watchAccess() {
  if (isWatching) return;
  isWatching = true;
  watchPage(() => {
    document.querySelectorAll(ICONS).forEach((icon) => icon.setAttribute("aria-hidden", "true"));
    document.querySelectorAll(SCROLLED).forEach((box) => box.setAttribute("tabindex", "0"));
    document.querySelectorAll(CHART_TOOLS).forEach((tool) => tool.setAttribute("tabindex", "-1"));
  });
}

// src/theme.js
var STORAGE_VERSION = 2;
function storageKeys(paths, pathname) {
  const page = paths.find((path) => path && pathname.endsWith(`/${path}`)) ?? "";
  const base = pathname.slice(0, pathname.length - page.length);
  const all = /* @__PURE__ */ new Set([pathname, ...paths.map((path) => base + path)]);
  return [...all].map((path) => `stActiveTheme-${path}-v${STORAGE_VERSION}`);
}
function storedTheme(keys) {
  try {
    const themes = keys.map((key) => JSON.parse(localStorage.getItem(key) ?? "null"));
    return themes.find((theme) => typeof theme === "string") ?? null;
  } catch {
    return null;
  }
}
function storeTheme(keys, theme) {
  try {
    for (const key of keys) localStorage.setItem(key, JSON.stringify(theme));
  } catch {
  }
}
function themeName({ name, displayName }) {
  if (displayName === "System" || /Auto$|system/i.test(name)) return "System";
  return /Dark/.test(name) ? "Dark" : "Light";
}

// src/components/theme-switch.js
var REPORT_DELAY_MS = 60;
var LONGEST_WAIT_MS = 1e3;
function addThemeSwitch(component) {
  watchAccess();
  const buttons = [...component.parentElement.querySelectorAll("[data-theme]")].map((node) => (
    /** @type {HTMLElement} */
    node
  ));
  const keys = storageKeys(component.data.paths, location.pathname);
  const showCurrent = () => {
    const current = storedTheme(keys) ?? "System";
    for (const button of buttons) {
      button.setAttribute("aria-checked", String(button.dataset.theme === current));
      button.tabIndex = button.dataset.theme === current ? 0 : -1;
    }
  };
  const choose = (name) => {
    const context = themeContext(), theme = context?.availableThemes.find((option) => themeName(option) === name);
    const ground = groundColour(), begun = performance.now();
    if (theme) context?.setTheme(theme);
    storeTheme(keys, name);
    showCurrent();
    const report = () => {
      const isShown = groundColour() !== ground || performance.now() - begun > LONGEST_WAIT_MS;
      if (isShown) setTimeout(() => component.setTriggerValue("chosen", name), REPORT_DELAY_MS);
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
  if (stored) storeTheme(keys, stored);
  showCurrent();
}
function groundColour() {
  const app = document.querySelector('[data-testid="stApp"]');
  return app && getComputedStyle(app).backgroundColor;
}
function themeContext() {
  const app = (
    /** @type {any} */
    document.querySelector('[data-testid="stApp"]')
  );
  const field = app && Object.keys(app).find((key) => key.startsWith("__reactFiber$"));
  for (let fiber = field && app[field]; fiber; fiber = fiber.return) {
    const value = fiber.memoizedProps?.value;
    if (value && typeof value.setTheme === "function" && Array.isArray(value.availableThemes)) {
      return (
        /** @type {ThemeContext} */
        value
      );
    }
  }
  return null;
}
export {
  addThemeSwitch as default
};
