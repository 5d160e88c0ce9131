/* Copies the address. A page that was not served over HTTPS has no clipboard of its own: there a selected text is copied. */

export default function (component) {
  const button = component.parentElement.querySelector(".kv-copy");
  button.onclick = async () => {
    const done = await copy(location.href);
    button.textContent = done ? "Copied" : "Copy it from the address bar";
    setTimeout(() => { button.textContent = "Copy link"; }, 1600);
  };
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
