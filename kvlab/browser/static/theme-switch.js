// Built by `make browser`. Do not edit: change the sources in kvlab/browser and build again.
// Sources: src/access.js src/components/theme-switch.js src/plotly-charts.js src/theme.js
// SHA-256 of the sources: e0ef31293bc72878008224b25a3a3c8260bcd942fe048a163e7fedead2eb7915
// SHA-256 of the code: 89b5b306745e4c0ee4f3bb7927a4286bfd7a6b4a75191a9872523870a70c7e91
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
var REPORT_DELAYS_MS = [60, 2e3, 5e3, 15e3];
var latest;
function addThemeSwitch(component) {
  watchAccess();
  latest = component;
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
    if (theme) context?.setTheme(theme);
    storeTheme(keys, name);
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
  if (stored) storeTheme(keys, stored);
  showCurrent();
}
function report(name, attempt = 0) {
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
