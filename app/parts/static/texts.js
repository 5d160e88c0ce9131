/* Texts come to the page once (app/parts/sent_texts.py), whatever is drawn of them and however often. A view that names
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

function awaitNoTexts(view) { shelf.waiting.delete(view); }
