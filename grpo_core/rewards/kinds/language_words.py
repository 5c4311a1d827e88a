"""Which scripts languages are written in, and the function words that tell those of one script apart.

Function words (articles, pronouns, prepositions, conjunctions, auxiliaries) make up a third and more of running text
and hardly depend on its subject. Short lists do: a text of a few sentences holds dozens of them.
"""

LANGUAGES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("en", "de", "es", "fr", "it", "nl", "pt", "sw", "tr", "vi"), ("LATIN",)),
    **dict.fromkeys(("ru", "uk"), ("CYRILLIC",)),
    "zh": ("CJK",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"),
    "ko": ("HANGUL",),
    "ar": ("ARABIC",),
    "he": ("HEBREW",),
    "el": ("GREEK",),
    "hi": ("DEVANAGARI",),
    "bn": ("BENGALI",),
    "ta": ("TAMIL",),
    "te": ("TELUGU",),
    "th": ("THAI",),
}
"""ISO 639-1 code → first words of its letters' names in Unicode."""

WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the of and to in is that it was for on are as with his they be at this have from or had by but not what "
        "all were we when your can said there an each which she do how their if will so then he has her would them "
        "these than been who its did now my no our must much many per into because",
        "de": "der die das und in zu den ist nicht von sie mit dem sich des auf für im eine als auch es an werden "
        "aus er hat dass wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber vor zur "
        "bis mehr durch man dann sein wenn ich wir also wurde pro jeden jede viele ihr ihre kann muss ein was",
        "es": "de la que el en y a los se del las un por con no una su para es al lo como más o pero sus le ha me si "
        "sin sobre este ya entre cuando todo esta ser son dos también fue había era muy años hasta desde está mi "
        "porque qué sólo cuántos cuánto cada entonces tiene ella él hay",
        "fr": "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce il sont la ou "
        "avec son aux sa cette mais comme nous vous ont été elle on deux leur fait aussi donc alors combien chaque "
        "tout ses si être même faut car d'abord y je c'est",
        "it": "di e il la che in un a è per una sono con non si da come le dei nel del alla i più o anche lo gli ha ma "
        "della al se quanto quanti quindi ogni suo sua perché delle poi questo questa dopo era essere ci due hanno",
        "nl": "de het een en van in is dat op te zijn met voor niet aan er om ook als dan maar bij of uit nog naar "
        "heeft hij ze door over wordt kan deze die worden was per hoeveel elke dus wij hebben haar wat",
        "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à "
        "seu sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois sem mesmo "
        "quantos quanto cada então são",
        "sw": "na ya wa kwa ni za la katika kuwa hii cha kama huo yake vya lakini yeye ili hiyo au kila pia hivyo "
        "baada zaidi ambayo ana wake sana hayo kutoka kabla jumla ngapi wao sisi ikiwa moja mbili siku je basi huu "
        "kwamba bado alikuwa wote",
        "tr": "ve bir bu da de için ile çok daha ne kadar olarak olan gibi her sonra o ama en mi var ise değil kaç ki "
        "göre önce tüm ya hem iki toplam",
        "vi": "và của là có không được cho một trong người các với này đã những để khi đó thì từ mỗi bao nhiêu ra số "
        "vào còn nếu cũng ông bà anh cô ấy như tổng",
        "ru": "и в не на что с по это как он она они к но из у за от то для его её мы так же все бы было был была если "
        "или только когда до вот уже сколько каждый всего за при чтобы этот ещё после который поэтому тогда",
        "uk": "і в не на що з до та як це він вона вони але у за від то для його її ми так же всі якщо або було був "
        "була тільки коли вже скільки кожен щоб цей ще після який тому тоді є",
    }.items()
}
"""Function words, case folded. A word may be one of several languages."""
