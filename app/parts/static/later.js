/* Tells the server once the page's first chart is on the screen, or that it has waited long enough. */

const PATIENCE = 3000, LOOK = 40;

export default function (component) {
  const begun = performance.now();
  let timer = 0;
  const tell = () => component.setTriggerValue("painted", true);
  const look = () => {
    const drawn = document.querySelector(".js-plotly-plot .main-svg") || performance.now() - begun > PATIENCE;
    if (drawn) requestAnimationFrame(() => requestAnimationFrame(tell));
    else timer = setTimeout(look, LOOK);
  };
  look();
  return () => clearTimeout(timer);
}
