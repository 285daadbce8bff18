export interface Item {
  id: string;
  name: string;
  priceCents: number;
  quantity: number;
}

export class CartError extends Error {}

/** A shopping cart. Prices are whole cents. */
export class ShoppingCart {
  private items: Map<string, Item> = new Map();

  constructor(private readonly currency: string = "EUR") {}

  add(item: Item): void {
    const existing = this.items.get(item.id);
    if (existing) {
      existing.quantity += item.quantity;
      return;
    }
    this.items.set(item.id, { ...item });
  }

  remove(id: string): void {
    if (!this.items.delete(id)) {
      throw new CartError(`no item ${id} in the cart`);
    }
  }

  setQuantity(id: string, quantity: number): void {
    const item = this.items.get(id);
    if (!item) {
      throw new CartError(`no item ${id} in the cart`);
    }
    item.quantity = quantity;
  }

  totalCents(): number {
    let total = 0;
    for (const item of this.items.values()) {
      total += item.priceCents * item.quantity;
    }
    return total;
  }

  isEmpty(): boolean {
    return this.items.size === 0;
  }

  format(): string {
    const lines = [...this.items.values()].map(
      (item) => `${item.quantity} x ${item.name}`,
    );
    lines.push(`Total: ${(this.totalCents() / 100).toFixed(2)} ${this.currency}`);
    return lines.join("\n");
  }
}
