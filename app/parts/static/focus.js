/* A button keeps the focus after it was pressed (so does that of a list just closed), yet has no use for these keys. */
function ownsNoKeys(target) {
  return target === document.body || (target.tagName === "BUTTON" && !target.closest("[role=tablist], [role=radiogroup], [role=listbox]"));
}
