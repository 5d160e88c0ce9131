/** What Streamlit passes to the default export of a component, a talk to the views of its slides, a notebook to a view. */
export interface Component<Data = any> {
  parentElement: HTMLElement | ShadowRoot;
  data: Data;
  /** Whether the page has a use of its own for keys that are typed beside the view. */
  isEmbedded?: boolean;
  setStateValue(name: string, value: unknown): void;
  setTriggerValue(name: string, value: unknown): void;
}

/** A view that stays on the page while its data change. */
export interface View<Data> {
  component: Component;
  refresh(data: Data): void;
  dispose(): void;
}

export type ViewClass<Data> = new (component: Component, data: Data) => View<Data>;

/** A list of numbers: a typed array in the dashboard, a plain array in a talk. */
export type Vector = ArrayLike<number> & Iterable<number>;

export type Axis = "x" | "y";

/** The parts of a Plotly chart's element that kvlab reads. `meta` is written by kvlab. */
export interface PlotlyChart extends HTMLElement {
  layout?: {
    meta?: {
      tokens?: { axis: Axis; offset: number };
      go?: Partial<Record<Axis, string>>;
      ranks?: Partial<Record<Axis, number[]>>;
      lines?: string[];
    };
  };
  _fullData?: { uid: string; name: string }[];
  _fullLayout?: { xaxis: PlotlyAxis; yaxis: PlotlyAxis };
  on?(type: string, handler: (event: { points?: PlotlyPoint[] }) => void): void;
}

export interface PlotlyAxis {
  type: string;
  _categories: string[];
  _offset: number;
  _length: number;
  d2p(value: number | string): number;
}

export interface PlotlyPoint {
  x?: number | string;
  y?: number | string;
  curveNumber?: number;
  customdata?: { go?: Record<string, number> };
}

export interface WaitingView {
  data: { shared?: Record<string, string> };
  draw(data: any): void;
}

declare global {
  interface Window {
    /** Large data that components of a page share, by name. */
    kvlabShared?: { values: Map<string, unknown>; waiting: Map<object, WaitingView> };
    /** Views of a talk's slides, by name. */
    views: Record<string, (component: Component) => () => void>;
  }
}
