"""The prompts of the sample draft: varied instructions over two disjoint sets of topics.

Training prompts use the topics of :data:`TOPICS`; the held-out prompts use :data:`HELD_OUT_TOPICS`, which training never
sees, in the same spread of request kinds. Everything is written here and drawn with a seed, so no data set is needed.
"""

from __future__ import annotations

import random

TOPICS: dict[str, str] = {
    "science": """photosynthesis;gravity;black holes;the water cycle;plate tectonics;DNA;evolution;the immune system;magnetism;sound waves;
        volcanoes;earthquakes;the solar system;atoms;chemical bonds;electricity;vaccines;bacteria;the ozone layer;ocean tides;rainbows;
        cell division;the periodic table;entropy;friction;nuclear fusion;climate change;hurricanes;fossils;genes;enzymes;lightning;
        the greenhouse effect;acids and bases;the human heart;the brain;muscles;bones;digestion;sleep;eclipses;comets;galaxies;
        radioactivity;lasers;superconductors;crystals;glaciers;coral reefs;migration of birds""",
    "computing": """recursion;a hash table;binary search;a linked list;TCP;UDP;DNS;HTTP;encryption;a compiler;an operating system;version control;
        unit tests;a database index;SQL joins;object-oriented programming;functional programming;a cache;a firewall;machine learning;
        a neural network;overfitting;gradient descent;cloud computing;a load balancer;an API;a web browser;garbage collection;
        a stack;a queue;a binary tree;sorting algorithms;regular expressions;multithreading;a deadlock;Docker containers;
        open source software;phishing;two-factor authentication;a virtual machine;big O notation;JSON""",
    "life": """time management;public speaking;saving money;learning a language;healthy eating;job interviews;stress;exercise;sleep habits;
        making friends;studying for exams;writing a resume;working from home;meditation;gardening;cooking pasta;baking bread;
        painting a room;fixing a bicycle;camping;running a marathon;playing the guitar;photography;chess;swimming;yoga;reading more;
        budgeting;recycling;travelling alone;raising a puppy;keeping a journal;hosting a dinner;moving house;leading a meeting;
        giving feedback;negotiating a salary;remembering names;taking notes;planning a wedding""",
    "history": """the Roman Empire;the French Revolution;the Industrial Revolution;World War II;ancient Egypt;the Renaissance;the Silk Road;
        the Cold War;the printing press;the Great Depression;the Vikings;ancient Greece;the American Civil War;the Space Race;
        the Ottoman Empire;the Mongol Empire;the fall of the Berlin Wall;the Black Death;the Magna Carta;the Age of Exploration;
        the invention of the telephone;the Gold Rush;the Panama Canal;the Great Wall of China;women's suffrage;the Olympic Games;
        the Inca civilization;the Russian Revolution;the first airplane;the United Nations""",
    "place": """Paris;Tokyo;Egypt;Brazil;India;Canada;Australia;Rome;London;New York;Kenya;Iceland;Mexico;Greece;China;Norway;Peru;Morocco;
        Thailand;South Africa;Spain;Germany;Switzerland;Turkey;Vietnam;Argentina;Ireland;Portugal;Cuba;Nepal""",
    "thing": """a bicycle;a clock;a lighthouse;a cat;a dog;a river;a mountain;a library;a robot;a garden;a storm;a train;a bridge;a castle;
        a telescope;a violin;an old map;a lantern;a dragon;a ship;a forest;a desert;the moon;a market;a mirror;a key;a painting;
        a coffee shop;a snowman;a kite""",
}

MORE_TOPICS: dict[str, str] = {
    "science": """the moon landing;stem cells;photons;the scientific method;tectonic faults;pollination;the food chain;hibernation;allergies;
        the kidney;the lungs;blood;hormones;neurons;memory;color vision;hearing;taste;the skin;viscosity;density;buoyancy;momentum;
        energy conservation;heat transfer;evaporation;condensation;clouds;snow;the seasons;deserts;rainforests;wetlands;soil;minerals;
        metals;plastics;oxygen;carbon;water;salt;sugar;proteins;vitamins;antibiotics;parasites;fungi;insects;whales;dinosaurs;mammals""",
    "computing": """a variable;a loop;a function;a class;inheritance;an array;a string;a boolean;an integer overflow;a memory leak;
        a pointer;a thread pool;a message queue;a microservice;a container;continuous integration;code review;debugging;logging;
        refactoring;a code editor;a spreadsheet;a search engine;a recommendation system;image recognition;speech recognition;
        a chatbot;data cleaning;a pivot table;backups;spam filters;a digital signature;a VPN;a cookie;responsive design;HTML;CSS;
        JavaScript;Python;Linux""",
    "life": """waking up early;drinking water;walking;stretching;cooking rice;making soup;grilling vegetables;packing a suitcase;
        cleaning the kitchen;doing laundry;buying a car;renting an apartment;choosing a career;changing jobs;working in a team;
        dealing with conflict;saying no;asking for help;learning to draw;learning to dance;singing;knitting;woodworking;bird watching;
        fishing;skiing;surfing;playing tennis;playing basketball;watching movies;listening to music;visiting museums;learning history;
        learning math;writing poetry;blogging;making videos;using social media;protecting privacy;caring for plants""",
    "history": """the Persian Empire;the Han dynasty;the Crusades;the Reformation;the Enlightenment;the Spanish Armada;the American Revolution;
        the Napoleonic Wars;the abolition of slavery;the Meiji Restoration;World War I;the League of Nations;the Marshall Plan;
        the civil rights movement;apartheid;the European Union;the invention of the wheel;the invention of paper;the discovery of penicillin;
        the first computer;the internet;the Library of Alexandria;the pyramids;Stonehenge;the Taj Mahal;the Eiffel Tower""",
    "place": """France;Japan;Russia;South Korea;the Netherlands;Belgium;Austria;Denmark;Finland;Hungary;Jordan;Israel;Ethiopia;Tanzania;
        New Zealand;Singapore;Malaysia;the Philippines;Colombia;Costa Rica;Hawaii;Alaska;California;Texas;Florida;Berlin;Madrid;Vienna;Venice;Sydney""",
    "thing": """a candle;a tree;a horse;a rabbit;a wolf;an eagle;a whale;a rocket;a submarine;a balloon;a clockmaker;a baker;a teacher;a farmer;
        a pirate;a king;a village;a cave;a waterfall;a volcano;a rainbow;a snowstorm;a summer day;a school;a bookshop;a bakery;a letter;
        a secret door;a time machine;a treasure chest""",
}

FURTHER_TOPICS: dict[str, str] = {
    "science": """gravity waves;dark matter;antimatter;the Big Bang;neutron stars;meteor showers;the northern lights;satellites;telescopes;
        microscopes;the atmosphere;wind;fog;hail;droughts;floods;avalanches;caves;rivers;lakes;oceans;mountains;islands;erosion;sand;
        diamonds;gold;iron;copper;helium;hydrogen;nitrogen;methane;alcohol;soap;glass;paper;rubber;cotton;honey;milk;caffeine;
        cholesterol;calcium;the liver;the stomach;the spine;teeth;hair;the eye;the ear;dreams;pain;fever;the common cold;asthma;
        diabetes;cancer;aging;twins;cloning;natural selection;symbiosis;camouflage;venom;bees;ants;butterflies;spiders;sharks;dolphins;
        penguins;elephants;bats;owls;frogs;snakes;turtles;mushrooms;algae;trees;seeds;flowers;cacti;kinetic energy;levers;pulleys;
        the pendulum;springs;pressure;temperature;waves;optics;mirrors;lenses;X-rays;microwaves;radio waves;solar panels;wind turbines""",
    "computing": """a text editor;a terminal;a file system;a process;a semaphore;a hash function;a trie;a sparse matrix;a priority queue;
        breadth-first search;depth-first search;quicksort;merge sort;a for loop;a while loop;an if statement;a dictionary;a tuple;a set;
        an exception;a decorator;a lambda;a module;a package manager;type checking;a linter;a debugger;a profiler;a mock object;
        a design pattern;an event loop;a callback;a promise;a web server log;a proxy;an IP address;a subnet;Bluetooth;Wi-Fi;a sensor;
        a microcontroller;a GPU;RAM;a hard disk;a solid-state drive;a USB port;a barcode;a QR code;bitcoin;a data warehouse;a histogram;
        linear regression;clustering;a random forest;reinforcement learning;a language model;tokenization;a knowledge graph;a dashboard""",
    "life": """making tea;baking cookies;making pizza;cooking eggs;eating breakfast;packing lunch;feeding a baby;raising children;
        training a cat;keeping fish;growing tomatoes;composting;mowing the lawn;painting with watercolors;origami;pottery;sewing;calligraphy;
        learning the piano;learning Spanish;learning to code;learning to drive;learning to swim;riding a horse;climbing;rowing;boxing;
        playing football;playing golf;jogging;losing weight;quitting smoking;dealing with anxiety;staying focused;setting goals;
        building confidence;making decisions;apologizing;making small repairs;organizing a closet;decorating a room;choosing a gift;
        writing a speech;writing a cover letter;starting a business;selling online;investing;paying off debt;buying a house;
        preparing for retirement;planning a vacation;flying with children;finding a hobby;being a good neighbor;caring for parents""",
    "history": """the Phoenicians;the Maya civilization;the Roman Republic;the Punic Wars;the Hundred Years' War;the Wars of the Roses;
        the Thirty Years' War;the Spanish Inquisition;the Scientific Revolution;the Boxer Rebellion;the Opium Wars;the Irish famine;
        the Spanish Civil War;the Battle of Britain;the Cuban Missile Crisis;the Vietnam War;the Korean War;the fall of the Soviet Union;
        the invention of the radio;the invention of the car;the invention of photography;the discovery of America;the theory of relativity;
        the Apollo program;the Suez Crisis;the Statue of Liberty;the Colosseum;Machu Picchu;the Parthenon;the Forbidden City""",
    "place": """Turin;Barcelona;Lisbon;Prague;Budapest;Amsterdam;Stockholm;Copenhagen;Dublin;Edinburgh;Athens;Istanbul;Cairo;Nairobi;Lagos;
        Mumbai;Delhi;Bangkok;Hanoi;Seoul;Beijing;Shanghai;Hong Kong;Melbourne;Auckland;Toronto;Vancouver;Chicago;Boston;San Francisco;
        Los Angeles;Havana;Lima;Bogota;Buenos Aires;Rio de Janeiro""",
    "thing": """a squirrel;a bear;a lion;a parrot;a goldfish;a spider;a butterfly;a rose;an oak;a seed;a cloud;a star;a comet;a compass;
        a sword;a crown;a ring;a coin;a suitcase;a hat;a pair of shoes;a quilt;a teapot;a cake;an apple;a bowl of soup;a guitar;a drum;
        a puppet;a doll;a chessboard;a swing;a playground;a museum;a hospital;a farm;a beach;a harbor;a canyon;a glacier;a ghost;a wizard;
        a knight;a detective;a scientist;an astronaut;a grandmother;a stranger;a birthday;a wedding;a rainy night""",
}

HELD_OUT_TOPICS: dict[str, str] = {
    "science": "tornadoes;the speed of light;viruses;the carbon cycle;static electricity;the nervous system;asteroids;osmosis;tsunamis;batteries",
    "computing": "a blockchain;a graph database;a router;dynamic programming;a decision tree;a password manager;a heap;a web server",
    "life": "public transport;making coffee;drawing;hiking;writing a novel;small talk;home repairs;volunteering",
    "history": "the Byzantine Empire;the Boston Tea Party;the Aztec civilization;the invention of the steam engine;the Suez Canal;the Treaty of Versailles",
    "place": "Italy;Sweden;Indonesia;Chile;Scotland;Poland",
    "thing": "a windmill;a train station;a piano;a fox;a tent;an island",
}

KINDS: dict[str, list[str]] = {
    "science": [
        "Explain {t} in simple terms.",
        "What is the most important thing to know about {t}?",
        "Write a short paragraph about {t} for a school textbook.",
        "List five facts about {t}.",
        "Why does {t} matter?",
        "Give three questions and answers about {t}.",
        "Explain {t} to a ten-year-old child.",
        "How do scientists study {t}?",
    ],
    "computing": [
        "What is {t}? Explain with an example.",
        "Describe {t} in two sentences.",
        "What are the advantages and disadvantages of {t}?",
        "Write a Python function that shows the idea of {t}.",
        "List the steps to learn about {t}.",
        "Compare {t} with an everyday object.",
        "When should a programmer care about {t}?",
        "Write a short FAQ about {t}.",
    ],
    "life": [
        "Give me five tips for {t}.",
        "How can I get better at {t}?",
        "Write a short email to a friend about {t}.",
        "What are common mistakes in {t}?",
        "Make a one-week plan for {t}.",
        "Why is {t} hard, and what helps?",
        "What do I need to get started with {t}?",
        "Write a motivational message about {t}.",
    ],
    "history": [
        "Summarize {t} in a few sentences.",
        "What caused {t}?",
        "Why is {t} important?",
        "List three key events related to {t}.",
        "Who were the main people involved in {t}?",
        "What can we learn today from {t}?",
    ],
    "place": [
        "What should a tourist see in {t}?",
        "Describe the food of {t}.",
        "Write a three-day travel plan for {t}.",
        "What is the weather like in {t}?",
        "List five interesting facts about {t}.",
        "Write a postcard from {t}.",
    ],
    "thing": [
        "Write a short story about {t}.",
        "Write a poem about {t}.",
        "Describe {t} using all five senses.",
        "Write a dialogue between two people about {t}.",
        "Invent a name for {t} and explain it.",
        "Write the first paragraph of a novel that begins with {t}.",
    ],
}

ANY_TOPIC = [
    "Tell me about {t}.",
    "Write a quiz question with four choices about {t}, then give the answer.",
    "Write a headline and a short news story about {t}.",
    "Write a conversation between a teacher and a student about {t}.",
]

ARITHMETIC = [
    "What is {a} plus {b}? Explain each step.",
    "If I have {a} apples and give away {b}, how many are left?",
    "Count from {a} to {c}.",
]


def _all(topics: dict[str, str]) -> list[str]:
    return [kind.format(t=topic) for group, listed in topics.items() for topic in _names(listed) for kind in KINDS[group] + ANY_TOPIC]


def _names(listed: str) -> list[str]:
    return [" ".join(name.split()) for name in listed.split(";")]


def training_prompts(seed: int = 0) -> list[str]:
    """All request kinds over all training topics, plus some arithmetic, shuffled: about 2,600 prompts."""
    draw = random.Random(seed)
    numbers = [draw.choice(ARITHMETIC).format(a=a, b=b, c=a + 12) for a, b in (draw.sample(range(2, 60), 2) for _ in range(60))]
    prompts = sorted(set(_all(TOPICS) + numbers))
    draw.shuffle(prompts)
    return prompts


def more_prompts(seed: int = 2) -> list[str]:
    """The same request kinds over further topics: about 2,400 prompts, none of them in the first."""
    prompts = sorted(set(_all(MORE_TOPICS)) - set(training_prompts()))
    random.Random(seed).shuffle(prompts)
    return prompts


def further_prompts(seed: int = 3) -> list[str]:
    """And over still further topics: about 3,600 prompts, none of them in the first two."""
    prompts = sorted(set(_all(FURTHER_TOPICS)) - set(training_prompts()) - set(more_prompts()))
    random.Random(seed).shuffle(prompts)
    return prompts


def held_out_prompts(count: int = 100, seed: int = 1) -> list[str]:
    """``count`` prompts over topics that training never sees, spread evenly over the request kinds."""
    prompts = sorted(set(_all(HELD_OUT_TOPICS)))
    random.Random(seed).shuffle(prompts)
    return prompts[:count]
