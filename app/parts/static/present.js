/* The talk is one HTML page; it opens in a tab of its own, which needs the server no more. */

export default function (component) {
  const { parentElement, data } = component;
  parentElement.querySelector(".kv-present").onclick = () => {
    const page = URL.createObjectURL(new Blob([data.html], { type: "text/html" }));
    window.open(page, "_blank");
    setTimeout(() => URL.revokeObjectURL(page), 60000);
  };
}
