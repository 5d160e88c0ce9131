/* Tells the server once the page's first chart, or the linked view of a head, is on the screen, or that it has waited
   long enough. */

const PATIENCE = 3000, LOOK = 40;

export default function (component) {
  const begun = performance.now();
  let timer = 0;
  const tell = () => component.setTriggerValue("painted", true);
  const strip = () => [...document.querySelectorAll("div")].some((node) => node.shadowRoot?.querySelector(".kv-strip[data-step]"));
  const look = () => {
    const drawn = document.querySelector(".js-plotly-plot .main-svg") || strip();
    if (drawn || performance.now() - begun > PATIENCE) requestAnimationFrame(() => requestAnimationFrame(tell));
    else timer = setTimeout(look, LOOK);
  };
  look();
  return () => clearTimeout(timer);
}
