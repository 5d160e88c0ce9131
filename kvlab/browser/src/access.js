import { watchPage } from "./plotly-charts.js";

const ICON = '[data-testid="stIconMaterial"]:not([aria-hidden])';
const ICONS = `:is(a, button):has([data-testid="stMarkdownContainer"]) ${ICON}, [data-testid="stSidebarNavLink"] ${ICON}`;
const CHART_TOOLS = '.modebar-btn:not([tabindex="-1"])';
const SCROLLED = '[data-testid="stVerticalBlock"][overflow="auto"]:not([tabindex])';

let isWatching = false;

/**
 * Repair what Streamlit's widgets lack, on the whole page and for as long as it is open: an icon beside a label is not
 * read out, as its name is no part of the label, a box that scrolls is reached with the Tab key, and the tools of a chart,
 * six for each, are not: they are for a pointer, and the menu of the figure has its table.
 */
export function watchAccess() {
  if (isWatching) return;
  isWatching = true;
  watchPage(() => {
    document.querySelectorAll(ICONS).forEach((icon) => icon.setAttribute("aria-hidden", "true"));
    document.querySelectorAll(SCROLLED).forEach((box) => box.setAttribute("tabindex", "0"));
    document.querySelectorAll(CHART_TOOLS).forEach((tool) => tool.setAttribute("tabindex", "-1"));
  });
}
