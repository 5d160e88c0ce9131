/* How a component of the page stands there: one of its kind in each place, told the data again whenever the server has
   new, and disposed of with the place. */

function mounted(Kind) {
  const places = new WeakMap();
  return (component) => {
    const { parentElement, data } = component;
    let one = places.get(parentElement);
    if (!one) { one = new Kind(parentElement); places.set(parentElement, one); }
    one.component = component;
    one.refresh(data);
    return () => { one.dispose(); places.delete(parentElement); };
  };
}
