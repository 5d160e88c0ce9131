/* Keys for the whole page: next and previous head, and a list of all keys on "?". */

const listeners = new WeakMap();
let turned = 0; // heads forward less heads back, of all lists of keys: the bar may be drawn anew between two presses

export default function (component) {
  const { parentElement, data } = component;
  let keys = listeners.get(parentElement);
  if (!keys) { keys = new Keys(parentElement); listeners.set(parentElement, keys); }
  keys.component = component;
  keys.fill(data);
  return () => { keys.dispose(); listeners.delete(parentElement); };
}

class Keys {
  constructor(root) {
    this.root = root.querySelector(".kv-keys");
    this.dialog = this.root.querySelector("dialog");
    this.handler = (event) => this.key(event);
    document.addEventListener("keydown", this.handler);
    this.root.querySelector("button.open").onclick = () => this.dialog.showModal();
    this.root.querySelector("button.close").onclick = () => this.dialog.close();
  }

  dispose() { document.removeEventListener("keydown", this.handler); }

  fill(data) {
    this.data = data;
    const list = this.dialog.querySelector("dl");
    list.replaceChildren(...data.keys.flatMap(([key, meaning]) => {
      const name = document.createElement("dt"), text = document.createElement("dd");
      name.textContent = key;
      text.textContent = meaning;
      return [name, text];
    }));
  }

  /* The sum, not the single press: of several while the page is drawn the server may hear of the last one only. */
  turn(by) {
    turned += by;
    this.component.setStateValue("turned", turned);
  }

  key(event) {
    const target = event.composedPath()[0];
    if (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName) && target.type !== "range") return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const turns = { j: 1, "]": 1, k: -1, "[": -1 };
    if (event.key === "?") { event.preventDefault(); if (this.dialog.open) this.dialog.close(); else this.dialog.showModal(); }
    else if (turns[event.key] && this.data.heads) { event.preventDefault(); this.turn(turns[event.key]); }
  }
}
