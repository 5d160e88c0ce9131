/* While a story is told: where one is, its caption, and plain links to the other views. */

export default function (component) {
  const { parentElement, data } = component;
  const root = parentElement.querySelector(".kv-story"), part = (name) => root.querySelector(`[data-part="${name}"]`);
  root.querySelector(".where").textContent = data.where;
  root.querySelector(".caption").textContent = data.caption || "no caption";
  root.querySelector(".caption").classList.toggle("none", !data.caption);
  for (const name of ["previous", "next"]) {
    if (data[name]) part(name).href = data[name];
    else part(name).removeAttribute("href");
  }
  // The reader's own changes to the view stay; only the telling ends.
  part("stop").onclick = (event) => {
    event.preventDefault();
    const here = new URL(location.href);
    for (const name of data.drop) here.searchParams.delete(name);
    location.assign(here);
  };
  part("stop").href = "#";
}
