/* A button keeps the focus after it was pressed (so does that of a list just closed), yet has no use for these keys; nor
   has the page itself, which takes it wherever one clicks beside all that is on it. */
function ownsNoKeys(target) {
  if (target === document.body || target.dataset?.testid === "stMain") return true;
  return target.tagName === "BUTTON" && !target.closest("[role=tablist], [role=radiogroup], [role=listbox]");
}
