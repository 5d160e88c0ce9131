/* The talk is one HTML page; it opens in a tab of its own, which needs the server no more. The tab keeps the dashboard's
   content policy, which runs no script that is written into a page: each is handed over as a file of its own. */

const kept = (text, type) => {
  const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  setTimeout(() => URL.revokeObjectURL(address), 60000);
  return address;
};

export default function (component) {
  const { parentElement, data } = component;
  parentElement.querySelector(".kv-present").onclick = () => {
    const script = (_, code) => `<script src="${kept(code, "text/javascript")}"></script>`;
    window.open(kept(data.html.replace(/<script>([\s\S]*?)<\/script>/g, script), "text/html"), "_blank");
  };
}
