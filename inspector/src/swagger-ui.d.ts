declare module "swagger-ui-dist/swagger-ui-bundle.js" {
  /** Draws the reference into the element `dom_id`. */
  export default function SwaggerUIBundle(options: {
    /** Where the description is. */
    url: string;
    dom_id: string;
    deepLinking: boolean;
    showExtensions: boolean;
    showCommonExtensions: boolean;
    /** Another host that checks the description; null for none. */
    validatorUrl: null;
  }): void;
}
