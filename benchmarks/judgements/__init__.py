"""Rules of the product judged on real photos: promotion (docs/promotion.md), temperature and confidence."""
