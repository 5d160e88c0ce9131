/* Keys for the whole page: next and previous head, and a list of all keys on "?". */

const listeners = new WeakMap();
const GAP_MS = 3000; // the bar may be drawn anew between two presses: so long they are kept for the next list of keys
let turned = 0, told = 0; // heads forward less heads back, of all lists of keys, and what of it the server was told
let shown = null, gone = -Infinity;

document.addEventListener("keydown", (event) => press(event));

function press(event) {
  const target = event.composedPath()[0], turns = { j: 1, "]": 1, k: -1, "[": -1 };
  if (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName) && target.type !== "range") return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?" && shown) { event.preventDefault(); shown.toggle(); }
  else if (turns[event.key] && (shown ? shown.data.heads : performance.now() - gone < GAP_MS)) {
    event.preventDefault();
    turned += turns[event.key];
    shown?.tell();
  }
}

export default function (component) {
  const { parentElement, data } = component;
  let keys = listeners.get(parentElement);
  if (!keys) { keys = new Keys(parentElement); listeners.set(parentElement, keys); }
  keys.component = component;
  shown = keys;
  keys.fill(data);
  return () => { keys.dispose(); listeners.delete(parentElement); };
}

class Keys {
  constructor(root) {
    this.root = root.querySelector(".kv-keys");
    this.dialog = this.root.querySelector("dialog");
    this.root.querySelector("button.open").onclick = () => this.dialog.showModal();
    this.root.querySelector("button.close").onclick = () => this.dialog.close();
  }

  dispose() {
    if (shown !== this) return;
    shown = null;
    gone = this.data.heads ? performance.now() : -Infinity;
  }

  toggle() {
    if (this.dialog.open) this.dialog.close();
    else this.dialog.showModal();
  }

  fill(data) {
    this.data = data;
    const list = this.dialog.querySelector("dl");
    list.replaceChildren(...data.keys.flatMap(([key, meaning]) => {
      const name = document.createElement("dt"), text = document.createElement("dd");
      name.textContent = key;
      text.textContent = meaning;
      return [name, text];
    }));
    if (!data.heads) turned = told;
    else if (turned !== told) this.tell();
  }

  /* The sum, not the single press: of several while the page is drawn the server may hear of the last one only. */
  tell() {
    told = turned;
    this.component.setStateValue("turned", turned);
  }
}
