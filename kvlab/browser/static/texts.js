/* Texts come to the page once (app/components/payload.py), whatever is drawn of them and however often. A view that names
   texts which are not there yet is drawn as soon as they are. */

const MOST_TEXTS = 4;
const shelf = (window.kvlabTexts ??= { texts: new Map(), waiting: new Map() });

function bringTexts(name, texts) {
  shelf.texts.delete(name);
  shelf.texts.set(name, texts);
  for (const old of shelf.texts.keys()) if (shelf.texts.size > MOST_TEXTS) shelf.texts.delete(old);
  for (const [view, { data, draw }] of [...shelf.waiting]) withTexts(view, data, draw);
}

/* Calls `draw` with the data and their texts; later, where these are on their way. `view` is what waits for them. */
function withTexts(view, data, draw) {
  const texts = data.texts ?? shelf.texts.get(data.textsName);
  if (!texts) { shelf.waiting.set(view, { data, draw }); return; }
  shelf.waiting.delete(view);
  data.texts = texts;
  draw(data);
}

/* A component of the page that shows texts: one of its kind in each place, told the data whenever the server has new and
   their texts are there, and disposed of with the place. */
function mountedWithTexts(Kind) {
  const places = new WeakMap();
  return (component) => {
    const { parentElement } = component;
    withTexts(parentElement, unpack(component.data), (data) => {
      if (!places.has(parentElement)) places.set(parentElement, new Kind(parentElement));
      const one = places.get(parentElement);
      one.component = component;
      one.refresh(data);
    });
    return () => { shelf.waiting.delete(parentElement); places.get(parentElement)?.dispose(); places.delete(parentElement); };
  };
}
