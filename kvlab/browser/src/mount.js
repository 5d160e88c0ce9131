/** @import { Component, ViewClass } from "./types.js" */

/**
 * Passes data on to a view, now or later. Returns a function that cancels what is still waiting.
 * @callback Deliver
 * @param {Component} component
 * @param {(data: any) => void} draw
 * @returns {() => void}
 */

/** @type {Deliver} */
const deliverNow = (component, draw) => {
  draw(component.data);
  return () => {};
};

/**
 * A component that keeps one view per parent element: created with the first data, refreshed with later ones and disposed
 * of when the component is unmounted.
 * @template Data
 * @param {ViewClass<Data>} ViewType
 * @param {Deliver} [deliver]
 */
export function mount(ViewType, deliver = deliverNow) {
  /** @type {WeakMap<object, InstanceType<ViewClass<Data>>>} */
  const views = new WeakMap();
  return (/** @type {Component} */ component) => {
    const { parentElement } = component;
    const cancel = deliver(component, (data) => {
      const view = views.get(parentElement) ?? new ViewType(component, data);
      views.set(parentElement, view);
      view.component = component;
      view.refresh(data);
    });
    return () => {
      cancel();
      views.get(parentElement)?.dispose();
      views.delete(parentElement);
    };
  };
}
