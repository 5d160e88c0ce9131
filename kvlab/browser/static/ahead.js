/* Begins what the first chart would begin, and takes no room on the page. */

export default function (component) {
  const { parentElement, data } = component;
  const box = (parentElement.host ?? parentElement).closest("[data-testid=stElementContainer]");
  if (box) box.style.display = "none";
  for (const script of data.scripts) import(new URL(script, document.baseURI).href).catch(() => {});
}
